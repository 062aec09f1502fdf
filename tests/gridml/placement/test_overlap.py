"""Columns that parts share, against sets in plain Python, and a chain of neighbours."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite
from gridml.placement.sections import chain, overlap

rows_of_columns = st.lists(st.sets(st.integers(0, 20)), min_size=1, max_size=30)


@given(rows_of_columns, st.integers(1, 70), st.data())
def test_what_parts_share_is_what_both_touch_by_weight(
    touched: list[set[int]], parts: int, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, parts - 1), min_size=len(touched), max_size=len(touched)))
    weights = data.draw(st.lists(st.integers(0, 10**6), min_size=21, max_size=21))
    offsets = np.cumsum([0, *map(len, touched)])
    graph = Bipartite.from_rows(offsets, np.array([c for row in touched for c in row], np.int64), 21)
    shared = overlap(graph, np.array(rows, np.int32), parts, np.array(weights, np.int64))
    sets: list[set[int]] = [set() for _ in range(parts)]
    for part, columns in zip(rows, touched, strict=True):
        sets[part] |= columns
    assert shared.tolist() == [[sum(weights[c] for c in one & other) for other in sets] for one in sets]


@given(st.integers(1, 12), st.data())
def test_a_chain_has_every_part_once_and_each_is_followed_by_the_nearest_that_is_left(
    parts: int, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(0, 9), min_size=parts * parts, max_size=parts * parts))
    shared = np.array(numbers, np.int64).reshape(parts, parts)
    shared = shared + shared.T
    order = chain(shared).tolist()
    assert sorted(order) == list(range(parts))
    for at in range(1, parts):
        assert shared[order[at - 1], order[at]] == max(shared[order[at - 1], part] for part in order[at:])
