"""Construction of graphs, and rejected input."""

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


@given(EDGES, st.permutations(range(7)), st.integers(0, 7))
def test_some_rows_alone_touch_what_they_touch(edges: list[tuple[int, int]], order: list[int], count: int) -> None:
    graph, rows = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (7, 5)), order[:count]
    some = graph.only(np.array(rows, np.int32))
    assert (some.rows, some.columns) == (count, 5)
    assert edges_of(some) == [(at, v) for at, row in enumerate(rows) for u, v in edges_of(graph) if u == row]


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


def test_weights_are_kept_where_they_are_given() -> None:
    graph = Bipartite.from_edges([0, 1, 1], [0, 0, 2])
    assert (graph.work, graph.heaviest) == (2, 1) and graph.weighted() == graph
    assert (graph.works.tolist(), graph.sizes.tolist()) == ([1, 1], [1, 1, 1])
    weighted = graph.weighted(rows=[2.0, 5.0]).weighted(columns=np.array([1, 0, 3], np.uint8))
    assert weighted.row_weights is not None and weighted.row_weights.dtype == np.int64
    assert weighted.column_weights is not None and weighted.column_weights.tolist() == [1, 0, 3]
    assert (weighted.work, weighted.heaviest) == (7, 5)
    assert (weighted.works.tolist(), weighted.sizes.tolist()) == ([2, 5], [1, 0, 3])
    assert weighted.only(np.array([1])).sizes.tolist() == [1, 0, 3]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1], r"got 1 row weights \(int64\); expected 2 numbers"),
        ([[1, 2]], "got 1 × 2 row weights"),
        (3, "got one row weights"),
        (["a", "b"], "expected 2 numbers"),
        ([1, -1], "the weight of row 1 is -1; expected a whole number from 0"),
        ([float("nan"), 1], "the weight of row 0 is nan"),
        ([1, float("inf")], "the weight of row 1 is inf"),
        ([0.5, 1], "the weight of row 0 is 0.5; expected a whole number"),
        ([0, 0], "the row weights sum to 0; expected more than 0"),
        ([2**53, 2**53], "the row weights sum to 1.8.*; expected"),
    ],
)
def test_what_is_no_weight_is_refused(rows: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Bipartite.from_edges([0, 1], [0, 0]).weighted(rows=rows)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said.replace("row", "column")):
        Bipartite.from_edges([0, 0], [0, 1]).weighted(columns=rows)  # type: ignore[arg-type]
