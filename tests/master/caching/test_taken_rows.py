"""Rows that the master took unchanged from a push, for one push and for a group."""

from __future__ import annotations

import numpy as np

from gridml.model.order import Touched
from gridml.protocol.push import RowValues
from master.caching.known_rows import keep_latest_writes, taken_rows


def rows(ids: list[int], *values: float) -> RowValues:
    column = np.array(values, np.float32)
    return RowValues(np.array(ids), {"value": column[:, None] * np.ones(2, np.float32), "seen": np.zeros(len(ids))})


def words(*ids: int) -> Touched:
    return {"Word": np.array(ids, np.int64)}


def test_rows_are_compared_to_the_bit() -> None:
    pushed = {"Word": rows([7, 2, 5], 1.0, 0.0, 3.0)}
    ids, alike = taken_rows(pushed, {"Word": rows([7, 2, 5], 1.0, -0.0, 3.0)})
    assert ids["Word"].tolist() == [2, 5, 7]
    assert alike["Word"].tolist() == [5, 7]


def test_a_row_without_numbers_is_as_it_was_pushed() -> None:
    nothing = {"Word": RowValues(np.array([1, 2]), {"value": np.zeros((2, 0), np.float32)})}
    assert taken_rows(nothing, nothing)[1]["Word"].tolist() == [1, 2]


def test_in_a_group_the_last_write_of_each_row_is_kept() -> None:
    kept = keep_latest_writes([words(1, 2, 3), words(2, 4), words(4, 5)], [words(1, 2, 3), words(4), words(5)])
    assert [each["Word"].tolist() for each in kept] == [[1, 3], [], [5]]


def test_pushes_of_a_group_need_not_bring_the_same_types() -> None:
    rows = [words(1, 2), {"Person": np.array([2])}]
    first, second = keep_latest_writes(rows, rows)
    assert first["Word"].tolist() == [1, 2]
    assert second["Person"].tolist() == [2]
