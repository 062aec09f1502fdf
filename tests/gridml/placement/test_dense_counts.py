"""Incrementally updated counts, while rows enter and leave parts, equal a fresh count."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite
from gridml.placement.serving import dense_counts, enter, leave

ROWS, COLUMNS, PARTS = 5, 4, 3
EDGES = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1)), max_size=20)
PART = st.integers(-1, PARTS - 1)


@given(EDGES, st.lists(PART, min_size=ROWS, max_size=ROWS), st.lists(st.tuples(st.integers(0, ROWS - 1), PART)))
def test_counts_follow_the_rows(edges: list[tuple[int, int]], dealt: list[int], moves: list[tuple[int, int]]) -> None:
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (ROWS, COLUMNS))
    graph = graph.weighted(columns=[1, 2, 4, 8])
    works, rows = np.array([1, 3, 9, 27, 81]), np.array(dealt, np.int32)
    weighed, counts = dense_counts(graph, works, rows, PARTS)
    for row, to in moves:
        if rows[row] >= 0:
            leave(row, weighed, counts)
        if to >= 0:
            enter(row, to, weighed, counts)
    assert counts.rows is rows
    for part in range(PARTS):
        mine = np.flatnonzero(rows == part)
        of_each = np.bincount(graph.only(mine).neighbours, minlength=COLUMNS)
        assert counts.times[:, part].tolist() == of_each.tolist()
        assert counts.touched[part] == graph.sizes[of_each > 0].sum()
        assert counts.load[part] == works[mine].sum()
