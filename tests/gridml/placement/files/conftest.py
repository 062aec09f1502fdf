"""Fixtures for files of graphs, valid and invalid."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.files import source
from gridml.placement.files.registry import read

Edges = set[tuple[int, int]]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read text in small blocks, so that even small files have several."""
    monkeypatch.setattr(source, "BLOCK", 16)
    monkeypatch.setattr(source, "PIECE", 5)


@pytest.fixture(scope="session")
def read_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bipartite]:
    """A function that writes a text to a file of a given name, compressed for .gz, and reads its graph."""
    folder = tmp_path_factory.mktemp("graphs")

    def call(name: str, text: str, format_name: str | None = None) -> Bipartite:
        content = text.encode()
        path = folder / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return read(path, format_name)

    return call


@pytest.fixture
def refused(read_text: Callable[..., Bipartite]) -> Callable[..., None]:
    """A function that checks that a text is rejected, with its file's name and the given words."""

    def call(name: str, text: str, *says: str) -> None:
        with pytest.raises(UsageError) as raised:
            read_text(name, text)
        for words in (name, *says):
            assert words in str(raised.value)

    return call


@pytest.fixture(scope="session")
def edges_of() -> Callable[[Bipartite], Edges]:
    def call(graph: Bipartite) -> Edges:
        return {
            (row, int(column))
            for row in range(graph.rows)
            for column in graph.neighbours[graph.offsets[row] : graph.offsets[row + 1]]
        }

    return call
