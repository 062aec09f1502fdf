"""Graphs that are made, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite

EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=40)


def edges_of(graph: Bipartite) -> list[tuple[int, int]]:
    rows = np.repeat(np.arange(graph.rows), graph.degrees)
    return list(zip(rows.tolist(), graph.neighbours.tolist(), strict=True))


@given(EDGES)
def test_edges_are_kept_once_each(edges: list[tuple[int, int]]) -> None:
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (7, 5))
    assert sorted(edges_of(graph)) == sorted(set(edges))
    assert sorted((u, v) for v, u in edges_of(graph.transposed)) == sorted(set(edges))
    assert (graph.rows, graph.columns, graph.transposed.rows) == (7, 5, 5)


def test_a_graph_is_as_large_as_its_edges_need() -> None:
    graph = Bipartite.from_edges([0, 3], [5, 1])
    assert (graph.rows, graph.columns, graph.edges) == (4, 6, 2)
    assert Bipartite.from_edges([], []).rows == 0


@pytest.mark.parametrize(
    ("offsets", "neighbours", "columns", "said"),
    [
        ([0, 2], [0], 3, "from 0 to the 1 neighbours"),
        ([], [], 3, "from 0 to the 0 neighbours"),
        ([0, 2, 1, 3], [0, 1, 2], 3, "must ascend"),
        ([0, 1, 2], [0, 3], 3, "row 1 touches column 3; expected one of 0 to 2"),
        ([0, 0, 1], [-1], 3, "row 1 touches column -1"),
        ([0, 1], [0], 2**31, "at most 2,147,483,647 rows and columns"),
    ],
)
def test_rows_that_are_none(offsets: list[int], neighbours: list[int], columns: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Bipartite.from_rows(np.array(offsets, np.int64), np.array(neighbours, np.int64), columns)


def test_edges_that_are_none() -> None:
    with pytest.raises(UsageError, match=r"got \(2,\) rows and \(1,\) columns"):
        Bipartite.from_edges([0, 1], [0])
    with pytest.raises(UsageError, match="edge 1 leaves row 4; expected one of 0 to 2"):
        Bipartite.from_edges([0, 4], [0, 0], (3, 1))
