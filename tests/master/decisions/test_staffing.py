"""How many workers to ask for, and when to give up on one, on a range, on all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.decisions.staffing import (
    MAX_FAILED_STARTS,
    MAX_UNFIT,
    after_failed_start,
    after_hold,
    is_silent,
    to_submit,
)


@given(st.integers(0, 1000), st.integers(1, 1000), st.booleans())
def test_workers_are_filled_up_and_never_beyond(alive: int, wanted: int, work_left: bool) -> None:
    count, reason = to_submit(alive, wanted, work_left=work_left)
    assert count >= 0
    assert reason
    if work_left:
        assert alive + count == max(alive, wanted)
    else:
        assert count == 0


@pytest.mark.parametrize(("now", "silent"), [(100.0, False), (219.9, False), (220.0, False), (220.1, True)])
def test_a_worker_is_silent_after_the_limit(now: float, silent: bool) -> None:
    found, reason = is_silent(100.0, now, 120.0)
    assert found is silent
    assert "limit 120 s" in reason


def test_workers_that_never_speak_end_the_run() -> None:
    assert after_failed_start(MAX_FAILED_STARTS - 1)[0]
    again, reason = after_failed_start(MAX_FAILED_STARTS)
    assert not again
    assert reason == "5 workers in a row ended before they had any work"
    assert after_failed_start(10 * MAX_FAILED_STARTS, others_work=True)[0]
    assert not after_failed_start(MAX_UNFIT, MAX_UNFIT, others_work=True)[0]


def test_machines_that_lack_something_are_many_before_the_run_is_given_up() -> None:
    assert after_failed_start(MAX_UNFIT - 1, MAX_UNFIT - 1)[0]
    again, reason = after_failed_start(MAX_UNFIT, MAX_UNFIT)
    assert (again, reason) == (False, "20 machines in a row lack something that the program needs")
    assert not after_failed_start(MAX_UNFIT - 1, MAX_UNFIT - 1 - MAX_FAILED_STARTS)[0]


@pytest.mark.parametrize(
    ("held", "spoken", "alive", "again"),
    [(1, False, 3, True), (3, False, 9, False), (1, False, 0, False), (50, True, 0, True)],
)
def test_held_jobs_end_a_run_that_never_began(held: int, spoken: bool, alive: int, again: bool) -> None:
    found, reason = after_hold(held, "no image", spoken=spoken, alive=alive)
    assert found is again and "no image" in reason and str(held) in reason


@pytest.mark.parametrize(("idle", "count"), [(0, 10), (4, 6), (10, 0), (12, 0)])
def test_no_more_wait_than_may(idle: int, count: int) -> None:
    found, _ = to_submit(idle, 1000, work_left=True, idle=idle, max_idle=10)
    assert found == count


def test_who_is_out_of_reach_is_given_less_time() -> None:
    assert is_silent(0.0, 31.0, 120.0, out_of_reach=True)[0] and not is_silent(0.0, 31.0, 120.0)[0]
