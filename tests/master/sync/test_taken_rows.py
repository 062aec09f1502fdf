"""Rows that the master has as they were pushed, by push and in a group of pushes."""

from __future__ import annotations

import numpy as np

from gridml.carriers.base import Message
from gridml.protocol.messages import Sync
from gridml.protocol.push import NOTHING, RowValues
from master.state.records import WorkerRecord
from master.sync.rows import Draft, leave_last, taken_rows


def rows(ids: list[int], *values: float) -> RowValues:
    column = np.array(values, np.float32)
    return RowValues(np.array(ids), {"value": column[:, None] * np.ones(2, np.float32), "seen": np.zeros(len(ids))})


def draft(pushed: list[int], as_pushed: list[int]) -> Draft:
    made = Draft(Message("w1", 1, b""), Sync("w1"), NOTHING, WorkerRecord("w1"))
    made.pushed, made.as_pushed = {"Word": np.array(pushed)}, {"Word": np.array(as_pushed)}
    return made


def test_rows_are_compared_to_the_bit() -> None:
    pushed = {"Word": rows([7, 2, 5], 1.0, 0.0, 3.0)}
    ids, alike = taken_rows(pushed, {"Word": rows([7, 2, 5], 1.0, -0.0, 3.0)})
    assert ids["Word"].tolist() == [2, 5, 7]
    assert alike["Word"].tolist() == [5, 7]


def test_a_row_without_numbers_is_as_it_was_pushed() -> None:
    nothing = {"Word": RowValues(np.array([1, 2]), {"value": np.zeros((2, 0), np.float32)})}
    assert taken_rows(nothing, nothing)[1]["Word"].tolist() == [1, 2]


def test_of_a_group_each_keeps_what_nobody_after_it_changed() -> None:
    first, second, third = draft([1, 2, 3], [1, 2, 3]), draft([2, 4], [4]), draft([4, 5], [5])
    leave_last([first, second, third])
    assert [each.as_pushed["Word"].tolist() for each in (first, second, third)] == [[1, 3], [], [5]]


def test_pushes_of_a_group_need_not_bring_the_same_types() -> None:
    first, second = draft([1, 2], [1, 2]), draft([2], [2])
    second.pushed, second.as_pushed = {"Person": np.array([2])}, {"Person": np.array([2])}
    leave_last([first, second])
    assert first.as_pushed["Word"].tolist() == [1, 2]
    assert second.as_pushed["Person"].tolist() == [2]
