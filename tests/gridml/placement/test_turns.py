"""The order in which parts take rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.base import Fill, in_turn


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.lists(st.sampled_from([0.1, 1.0, 2.5]), min_size=1, max_size=6),
)
def test_no_part_is_ahead_of_its_share_by_more_than_a_row(works: list[int], shares: list[float]) -> None:
    share = np.array(shares) / sum(shares)
    fill = Fill(np.zeros(len(share)), share, np.array(works))
    rows = np.full(len(works), -1, np.int32)
    in_turn(np.arange(len(works), dtype=np.int32), fill, rows)
    load = np.bincount(rows, works, len(share))
    np.testing.assert_array_equal(load, fill.load)
    assert (load <= share * sum(works) + max(works) + 1e-9).all()


def test_equal_parts_take_turns() -> None:
    rows = np.empty(5, np.int32)
    in_turn(np.array([4, 2, 0, 1, 3], np.int32), Fill(np.zeros(2), np.full(2, 0.5), np.ones(5, np.int64)), rows)
    assert rows[[4, 2, 0, 1, 3]].tolist() == [0, 1, 0, 1, 0]
