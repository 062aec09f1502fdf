"""Graphs of SNAP, in its own files and in those where vertices count from 1."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gridml.datasets import pinned
from gridml.datasets.graphs import GRAPHS, read_edges, snap
from gridml.errors import DataError

EDGES = {"facebook": 88_234, "enron": 183_831, "slashdot": 948_464}


def ignore(line: str) -> None:
    """Ignore a progress line."""


def test_both_kinds_of_files_give_the_same_edges(tmp_path: Path) -> None:
    own, renamed = tmp_path / "own", tmp_path / "renamed"
    own.mkdir()
    renamed.mkdir()
    (own / "email-Enron.txt.gz").write_bytes(gzip.compress(b"# From To\r\n2\t0\r\n0\t2\r\n0\t1\r\n1\t0\r\n"))
    (renamed / "email-enron.edges.gz").write_bytes(gzip.compress(b"# ids 1-based\n1\t2\n1\t3\n"))
    for folder in (own, renamed):
        assert read_edges("enron", "email-Enron", False, folder, ignore)["enron"].tolist() == [[0, 1], [0, 2]]
    assert read_edges("enron", "email-Enron", True, own, ignore)["enron"].tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]


def test_other_edges_and_other_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "facebook_combined.txt.gz").write_bytes(gzip.compress(b"0 1\n"))
    source = pinned.Source(
        "a file", lambda report: read_edges("facebook", "facebook_combined", False, tmp_path, report)
    )
    with pytest.raises(DataError, match="facebook holds 2 items, expected 176468"):
        snap("facebook", tmp_path / "cache", progress=ignore, sources=[source])
    with pytest.raises(DataError, match="snap got 'web'; expected one of facebook, enron, slashdot"):
        snap("web")


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graphs_themselves(name: str) -> None:
    try:
        found = snap(name)
    except DataError as error:
        pytest.skip(str(error))
    assert len(found.source) == len(found.target) == EDGES[name]
    assert not found.source.flags.writeable
    assert name == "slashdot" or (found.source < found.target).all()
