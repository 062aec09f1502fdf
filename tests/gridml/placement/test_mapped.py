"""Graphs that stay in a file: the same parts as in memory, and reads of at most a block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.auto import METHODS
from gridml.placement.base import Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.files.array_formats import write
from gridml.placement.files.registry import read
from gridml.placement.parsa import Parsa, ParsaOptions
from gridml.placement.quality import traffic
from gridml.placement.serving import serve
from tests.support.graphs import grouped


class Watched(np.memmap):  # type: ignore[type-arg]
    """Neighbours in a file, with a record of the largest read."""

    read: list[int]

    def __getitem__(self, key: Any) -> Any:
        self.read.append(key.stop - key.start)
        return np.asarray(self)[key]


def mapped(graph: Bipartite, folder: Path) -> Bipartite:
    write(folder / "graph.csr", (piece for _, piece in graph.pieces(5000)))
    return read(folder / "graph.csr")


def watched(graph: Bipartite) -> tuple[Bipartite, list[int]]:
    neighbours = graph.neighbours.view(Watched)
    neighbours.read = []
    return Bipartite(graph.offsets, neighbours, graph.columns), neighbours.read


def test_pieces_are_the_graph() -> None:
    graph = grouped(500, 200, 9)
    for edges in (1, 10, 1000, 10**6):
        pieces = list(graph.pieces(edges))
        assert [first for first, _ in pieces] == np.cumsum([0, *(piece.rows for _, piece in pieces)]).tolist()[:-1]
        assert np.array_equal(np.concatenate([piece.neighbours for _, piece in pieces]), graph.neighbours)
        assert np.array_equal(np.concatenate([piece.degrees for _, piece in pieces]), graph.degrees)
        assert all(piece.edges <= edges or piece.rows == 1 for _, piece in pieces)


@pytest.mark.parametrize("run", [None, 1, 37])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_parts_as_in_memory(run: int | None, threads: int, tmp_path: Path) -> None:
    graph = grouped(3000, 1500, 10)
    from_file = mapped(graph, tmp_path)
    assert from_file.mapped and not graph.mapped
    options = ParsaOptions(blocks=7, run=run, delay=2, threads=threads)
    usual = ParsaOptions(blocks=7, run=run or 3000 // 7, delay=2)
    one, other = Parsa().place(graph, 5, usual), Parsa().place(from_file, 5, options)
    assert np.array_equal(one.rows, other.rows) and np.array_equal(one.columns, other.columns)
    assert traffic(graph, one).travelling.tolist() == traffic(from_file, one).travelling.tolist()
    assert np.array_equal(serve(graph, one.rows, 5, 0), serve(from_file, one.rows, 5, 0))


def test_no_more_than_a_block_is_read_at_once(tmp_path: Path) -> None:
    graph, read_at_once = watched(mapped(grouped(4000, 2000, 10), tmp_path))
    Parsa().place(graph, 4, ParsaOptions(blocks=20, warm_up=2, run=50))
    assert max(read_at_once) <= 4 * 50 * 10, (
        "runs of 50 rows of ten columns at most, of which few follow on one another"
    )
    assert graph.edges <= sum(read_at_once) <= 1.15 * graph.edges, "every block once, and those of the warm-up"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_graph_from_a_file(name: str, tmp_path: Path) -> None:
    graph = grouped(300, 150, 6)
    from_file = mapped(graph, tmp_path)
    placed = METHODS[name].place(from_file, 3, Options(seed=1))
    assert traffic(from_file, placed).rows.sum() == 300
    if name not in ("parsa", "refined", "auto"):  # these read rows in blocks
        assert np.array_equal(placed.rows, METHODS[name].place(graph, 3, Options(seed=1)).rows)


def test_auto_leaves_a_graph_in_its_file(tmp_path: Path) -> None:
    why = METHODS["auto"].place(mapped(grouped(300, 150, 6), tmp_path), 3, Options()).why
    assert why.startswith("parsa, ") and "does not read the graph into memory" in why


def test_weights_of_a_graph_in_its_file_count(tmp_path: Path) -> None:
    graph, rng = grouped(300, 150, 6), np.random.default_rng(0)
    works, sizes = rng.integers(1, 9, 300), rng.integers(1, 99, 150)
    from_file, weighted = mapped(graph, tmp_path).weighted(works, sizes), graph.weighted(works, sizes)
    placed = METHODS["auto"].place(from_file, 3, Options())
    one, other = traffic(from_file, placed), traffic(weighted, placed)
    assert one.work.tolist() == other.work.tolist() and one.touched.tolist() == other.touched.tolist()
    assert one.travelling.tolist() == other.travelling.tolist()
    assert placed.why.startswith("multilevel, "), "parsa, which would leave it there, takes no account of columns"
    only_rows = METHODS["auto"].place(replace(from_file, column_weights=None), 3, Options(shares=(2, 1, 1)))
    assert only_rows.why.startswith("parsa, ") and "does not read the graph into memory" in only_rows.why


def test_a_neighbour_that_is_no_column(tmp_path: Path) -> None:
    graph = mapped(grouped(300, 150, 6), tmp_path)
    np.save(tmp_path / "graph.csr" / "shape.npy", np.array([300, 100]))
    graph = read(tmp_path / "graph.csr")
    with pytest.raises(UsageError, match=r"a row touches column 1[0-9]+; expected one of 0 to 99"):
        Parsa().place(graph, 2, ParsaOptions())
