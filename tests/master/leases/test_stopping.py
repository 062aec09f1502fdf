"""The decision to stop a run early, with no epoch in progress at the stop."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gridml
from master.leases.epochs import StoppingFacts, best_so_far, can_begin_epoch, should_stop, trend

WANTED = gridml.early_stopping("loss", patience=2, min_delta=0.1)


def facts(*values: float, pending: int = 0) -> StoppingFacts:
    return StoppingFacts(tuple(enumerate(values)), pending)


def test_it_stops_after_a_number_of_evaluations_without_progress() -> None:
    assert should_stop(facts(), WANTED)[0] is False
    assert should_stop(facts(3.0, 2.0, 2.0), WANTED) == (
        False,
        "1 of 2 evaluations in a row have not brought loss further",
    )
    assert should_stop(facts(2.0, 1.95, 2.1), WANTED) == (
        True,
        "2 evaluations in a row have not brought loss further by more than 0.1; its best is 2, after epoch 1, and over "
        "the last 3 evaluations it changes by +0.05 an evaluation",
    )
    assert should_stop(facts(3.0, 2.0, 2.0, 1.8), WANTED)[0] is False
    assert best_so_far(facts(3.0, 2.0, 2.0, 1.8), WANTED).epoch == 3


def test_it_goes_on_while_the_trend_gets_better() -> None:
    noisy = facts(2.5, 2.4, 2.0, 2.2, 2.1)
    assert should_stop(noisy, WANTED) == (
        False,
        "2 evaluations in a row have not brought loss further by more than 0.1; its best is 2, after epoch 3, but over "
        "the last 5 evaluations it changes by -0.1 an evaluation: it still gets better",
    )
    assert should_stop(facts(9.0, 2.5, 2.0, 2.0, 2.2, 2.1, 2.1), WANTED)[0], "the fall at the start is out of sight"
    assert not should_stop(facts(0.5, 0.6, 0.9, 0.8, 0.85), gridml.early_stopping("accuracy", 2))[0]
    assert should_stop(facts(0.9, 0.8, 0.85), gridml.early_stopping("accuracy", 2))[0]


def test_a_trend_within_min_delta_is_none() -> None:
    slow = facts(2.0, 1.98, 1.96, 1.94, 1.92)  # it gains 0.08 from first to last
    assert should_stop(slow, WANTED)[0] and not should_stop(slow, gridml.early_stopping("loss", 2, 0.01))[0]
    assert should_stop(facts(*[0.1] * 5), gridml.early_stopping("loss", 2))[0], "rounding is no trend"


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_no_progress(missing: float) -> None:
    stop, reason = should_stop(facts(missing, missing), WANTED)
    assert stop and "it never was a number" in reason and "over the last" not in reason
    assert trend(facts(3.0, 2.0, missing, missing), WANTED) is None
    assert should_stop(facts(3.0, 2.0, missing, missing), WANTED)[0], "a trend that has ended in no number is none"
    still = facts(3.0, 2.0, missing, 2.0)
    assert not should_stop(still, WANTED)[0]
    line = trend(still, WANTED)
    assert line is not None and line.slope == pytest.approx(np.polyfit([0, 1, 3], [3.0, 2.0, 2.0], 1)[0])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.integers(1, 5), st.sampled_from(["min", "max"]))
def test_the_trend_is_the_line_of_least_squares(values: list[float], patience: int, mode: str) -> None:
    wanted = gridml.early_stopping(f"{mode}:x", patience)
    line, newest = trend(facts(*values), wanted), values[-(2 * patience + 1) :]
    slope = np.polyfit(np.arange(len(newest)), newest, 1)[0]
    assert line is not None and line.count == len(newest)
    assert line.slope == pytest.approx(slope, rel=1e-6, abs=1e-9)
    sign = -1 if mode == "min" else 1
    assert line.gain == pytest.approx(sign * slope * (len(newest) - 1), rel=1e-6, abs=1e-8)


@given(st.lists(st.floats(), max_size=12), st.integers(1, 3), st.floats(0, 10))
@example([-sys.float_info.max, 1e292], 1, 0.0)  # the line between them is steeper than a float can be
@example([sys.float_info.max, -1e292], 1, 0.0)
def test_any_metrics_are_judged(values: list[float], patience: int, min_delta: float) -> None:
    wanted = gridml.early_stopping("loss", patience, min_delta)
    stop, reason = should_stop(facts(*values), wanted)
    now = best_so_far(facts(*values), wanted)
    assert reason and (now.without >= patience or not stop)
    assert can_begin_epoch(facts(*values), wanted)[0] is not stop, "a run that goes on has something to do"


def test_an_epoch_waits_for_what_may_end_the_run() -> None:
    assert can_begin_epoch(facts(3.0, pending=1), WANTED)[0]
    assert not can_begin_epoch(facts(3.0, pending=2), WANTED)[0]
    assert not can_begin_epoch(facts(3.0, 3.0, pending=1), WANTED)[0]
    still_better = (2.5, 2.4, 2.0, 2.2, 2.1)
    assert can_begin_epoch(facts(*still_better), WANTED)[0]
    begins, reason = can_begin_epoch(facts(*still_better, pending=1), WANTED)
    assert not begins and "is awaited" in reason


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 3.5, math.nan, math.inf]), min_size=1, max_size=30),
    st.floats(-0.2, 0.2),
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.integers(0, 4), min_size=60, max_size=60),
)
def test_no_epoch_is_under_way_at_the_stop(
    noise: list[float], slope: float, patience: int, every: int, delays: list[int]
) -> None:
    """Epochs begin as soon as possible and are evaluated in order, with any delay: at the stop no epoch is in progress,
    and no epoch waits without a reason."""
    values = [value + slope * epoch for epoch, value in enumerate(noise)]
    wanted, judged, begun, trained = gridml.early_stopping("loss", patience), [], 0, 0
    for delay in delays:
        while begun < len(values):
            pending = sum((epoch + 1) % every == 0 for epoch in range(len(judged) * every, begun))
            if not can_begin_epoch(StoppingFacts(judged, pending), wanted)[0]:
                assert pending
                break
            begun += 1
        trained = max(trained, begun - delay)
        while (len(judged) + 1) * every <= trained:
            epoch = (len(judged) + 1) * every - 1
            judged.append((epoch, values[epoch]))
            if should_stop(StoppingFacts(judged, 0), wanted)[0]:
                assert begun == epoch + 1
                return
