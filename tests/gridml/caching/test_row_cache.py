"""A worker's cache of rows returns the last stored rows, after any sequence of stores, keeps and removals."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import gridml
from gridml.caching.master_copy import RowCache
from gridml.model.vertex import describe
from gridml.protocol.push import RowValues


class Word(gridml.Vertex):
    count = gridml.array("int64")
    vector = gridml.array("float32", (2,))
    aggregate = gridml.add()


def rows(ids: list[int], value: int) -> RowValues:
    vectors = np.full((len(ids), 2), value, np.float32)
    return RowValues(np.array(ids, np.int64), {"count": np.full(len(ids), value), "vector": vectors})


some_ids = st.lists(st.integers(0, 40), unique=True, max_size=12)
steps = st.lists(st.tuples(st.sampled_from(["take", "keep", "clear"]), some_ids), max_size=12)


@given(steps, some_ids)
def test_what_was_taken_last_is_found(done: list[tuple[str, list[int]]], asked: list[int]) -> None:
    cache, expected = RowCache(describe(Word).arrays), dict[int, int]()
    for value, (what, ids) in enumerate(done, 1):
        if what == "take":
            cache.take(rows(ids, value))
            expected |= dict.fromkeys(ids, value)
        elif what == "keep":
            cache.keep(np.array(ids, np.int64))
            expected = {row: expected.get(row, 0) for row in ids}
        else:
            cache.clear()
            expected = {}
    found: dict[str, Any] = cache.values(np.array(asked, np.int64))
    assert found["count"].tolist() == [expected.get(row, 0) for row in asked]
    assert found["vector"].tolist() == [[expected.get(row, 0)] * 2 for row in asked]
    assert (found["count"].dtype, found["vector"].dtype) == (np.int64, np.float32)
    assert len(cache) == len(expected)


def test_what_is_found_is_a_copy() -> None:
    cache = RowCache(describe(Word).arrays)
    cache.take(rows([3], 7))
    cache.values(np.array([3]))["count"][:] = 0
    assert cache.values(np.array([3]))["count"].tolist() == [7]
