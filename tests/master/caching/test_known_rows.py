"""The master's record of a worker's rows: no row is omitted that the worker lacks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from master.caching.known_rows import PUSHED, UNKNOWN, KnownRows, LeaseRows, RowsHeld

COUNT = 30
some_ids = st.lists(st.integers(0, COUNT - 1), unique=True, max_size=12).map(sorted)
learned = st.lists(st.tuples(some_ids, st.integers(0, 9)), max_size=8)


@given(learned, st.lists(st.integers(0, 9), min_size=COUNT, max_size=COUNT), some_ids)
def test_a_row_is_lacking_unless_it_is_of_a_version_since_its_last_change(
    steps: list[tuple[list[int], int]], changed: list[int], asked: list[int]
) -> None:
    known, expected = KnownRows(), dict[int, int]()
    for ids, version in steps:
        known.add({"Word": np.array(ids, np.int64)}, version)
        expected |= dict.fromkeys(ids, version)
    lacking = known.lacking("Word", np.array(asked, np.int64), np.array(changed))
    assert lacking.tolist() == [row for row in asked if expected.get(row, -1) < changed[row]]
    assert known.counts() == ({"Word": len(expected)} if steps else {})
    known.clear()
    assert known.nbytes == 0
    assert known.lacking("Word", np.array(asked, np.int64), np.array(changed)).tolist() == asked


def test_rows_that_the_worker_has_changed_are_lacking_again() -> None:
    known, changed = KnownRows(), np.zeros(COUNT, np.int64)
    known.add({"Word": np.array([1, 4, 7], np.int64)}, 3)
    known.drop({"Word": np.array([4, 9], np.int64), "Other": np.array([1], np.int64)})
    assert known.lacking("Word", np.array([1, 4, 7], np.int64), changed).tolist() == [4]


def test_of_rows_that_are_sent_as_changes_none_is_known_in_doubt() -> None:
    """The worker pushes rows 1, 2 and 3; the reply brings 2; and it gives up a lease that row 4 came with."""
    held, rows = RowsHeld(), np.arange(6)
    held.answered.append(LeaseRows(7, {"Word": rows[:4], "Tag": rows[:4]}))
    held.version = 3
    held.acknowledge(True, {7}, {}, 3)
    assert held.known.versions("Word", rows).tolist() == [3, 3, 3, 3, UNKNOWN, UNKNOWN]
    pushed = {"Word": rows[1:4], "Tag": rows[1:4]}
    held.acknowledge(True, {7}, {"Word": rows[3:4]}, 5, pushed, {"Word"})
    assert held.known.versions("Word", rows).tolist() == [3, UNKNOWN, UNKNOWN, 5, UNKNOWN, UNKNOWN]
    assert held.known.versions("Tag", rows[:4]).tolist() == [3] * 4  # sent whole: an old version is as good as none
    held.answered += [LeaseRows(PUSHED, {"Word": rows[2:3]}), LeaseRows(8, {"Word": rows[3:5]})]
    held.version = 6
    held.acknowledge(True, {7}, {}, 6, {}, {"Word"})
    assert held.known.versions("Word", rows).tolist() == [3, UNKNOWN, 6, UNKNOWN, UNKNOWN, UNKNOWN]
    held.answered.append(LeaseRows(PUSHED, {"Word": rows}))
    held.acknowledge(False, {7}, {"Word": rows}, 7, {}, {"Word"})
    assert held.known.versions("Word", rows).tolist() == [UNKNOWN] * 6
