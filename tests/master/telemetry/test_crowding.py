"""The number of workers that a run is long enough for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.store.settings import STEPS_EACH
from master.telemetry.worth import MIN_WORKERS, RunLength, worker_limit

LENGTHS = st.builds(RunLength, st.integers(1, 10**12), st.integers(1, 10**6), st.integers(1, 10_000))


def count_of(length: RunLength) -> int:
    count, _ = worker_limit(length)
    assert count is not None
    return count


@given(LENGTHS)
def test_each_worker_trains_enough_and_of_one_more_none_would(length: RunLength) -> None:
    count = count_of(length)
    batches = length.vertices / length.batch
    assert count == MIN_WORKERS or batches / count >= length.steps_each
    assert batches / (count + 1) < length.steps_each


@given(LENGTHS, LENGTHS)
def test_a_longer_run_is_for_more(length: RunLength, other: RunLength) -> None:
    longer = RunLength(max(length.vertices, other.vertices), min(length.batch, other.batch), length.steps_each)
    assert count_of(longer) >= count_of(length) >= MIN_WORKERS


def test_the_reason_has_the_figures() -> None:
    assert STEPS_EACH == 150
    assert worker_limit(RunLength(80_000, 64)) == (
        8,
        "80,000 vertices are 1,250 batches of 64, and of more than 8 workers each would train fewer than 150",
    )


def test_all_workers_are_requested_if_the_user_says_so() -> None:
    assert worker_limit(RunLength(1, 1, steps_each=0)) == (None, "however little each trains")
