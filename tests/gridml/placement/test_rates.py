"""Seconds of a round, by hand, and invalid rates."""

from __future__ import annotations

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.base import Rates

MOVED, WORK = np.array([10, 30, 20]), np.array([4, 4, 12])


def test_seconds_are_those_of_the_formula() -> None:
    assert Rates((10.0,)).seconds(MOVED, WORK).tolist() == [2, 6, 4]
    assert Rates((10.0, 30.0, 5.0), (2.0,)).seconds(MOVED, WORK).tolist() == [2 + 2, 2 + 2, 8 + 6]
    assert Rates((10.0,), (4.0, 2.0, 1.0)).seconds(MOVED, WORK).tolist() == [2 + 1, 6 + 2, 4 + 12]


def test_all_wait_for_a_slow_master() -> None:
    assert Rates((10.0,), None, 12.0).seconds(MOVED, WORK).tolist() == [10, 10, 10]
    assert Rates((10.0,), None, 24.0).seconds(MOVED, WORK).tolist() == [5, 6, 5]


def test_the_pace_is_in_proportion_to_the_seconds() -> None:
    rates = Rates((10.0, 30.0, 5.0), (2.0,))
    pace = rates.pace(WORK.astype(float))
    share = rates.seconds(MOVED, WORK) / (pace.cost * MOVED + pace.fixed)
    assert share == pytest.approx(share[0]) and pace.cost.mean() == pytest.approx(1)
    assert Rates((7.0,)).pace(np.ones(3)).cost.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (((),), "the bandwidth is empty; expected numbers above 0"),
        (((1.0, 0.0),), "the bandwidth is 1, 0; expected"),
        (((1.0,), (float("nan"),)), "the speed is nan; expected"),
        (((1.0,), None, -1.0), "the master's bandwidth is -1; expected"),
    ],
)
def test_what_is_no_rate_is_refused(wrong: tuple[tuple[float, ...], ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Rates(*wrong)  # type: ignore[arg-type]
