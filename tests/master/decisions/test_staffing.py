"""How many workers to ask for, and when to give up on one, on a range, on all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.decisions.staffing import (
    MAX_STILLBORN,
    MAX_TRIES,
    after_failure,
    after_stillbirth,
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


def test_a_range_is_tried_three_times() -> None:
    assert [after_failure(tries)[0] for tries in range(1, MAX_TRIES + 2)] == [True, True, False, False]
    assert after_failure(1)[1] == "try 1 of 3 failed; another worker will try"
    assert after_failure(MAX_TRIES)[1] == "failed 3 times"


def test_workers_that_never_speak_end_the_run() -> None:
    assert after_stillbirth(MAX_STILLBORN - 1)[0]
    again, reason = after_stillbirth(MAX_STILLBORN)
    assert not again
    assert reason == "5 workers in a row ended before they said a word"
