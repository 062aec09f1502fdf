"""Remedies for holds are bounded, however a pool holds jobs; only holds that a person can resolve wait for one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.state.jobs import MAX_MEMORY_RAISES, MAX_RELEASES, MAX_ROUNDS, MIN_HOLDS, HeldFor, Hold, Remedy, after_hold

HOLDS = st.builds(
    Hold,
    st.sampled_from(HeldFor),
    st.just("no image"),
    released=st.integers(0, 10),
    without_credit=st.integers(0, 10_000),
    held=st.integers(1, 1000),
    alive=st.integers(0, 1000),
    target=st.integers(1, 1000),
    any_reported=st.booleans(),
)


@given(HOLDS)
def test_a_remedy_comes_with_a_reason(hold: Hold) -> None:
    remedy, after_s, reason = after_hold(hold)
    assert reason
    assert after_s >= 0 and (remedy is Remedy.RELEASE or not after_s)
    assert remedy is not Remedy.STOP or hold.reason in reason


@given(HOLDS)
def test_only_holds_that_a_person_can_resolve_wait(hold: Hold) -> None:
    if after_hold(hold)[0] is Remedy.WAIT:
        assert hold.because in (HeldFor.PERSON, HeldFor.JOB)


@given(HOLDS)
def test_a_person_who_holds_jobs_does_not_end_a_run_that_began(hold: Hold) -> None:
    by_a_person = dataclasses.replace(hold, because=HeldFor.PERSON, any_reported=True)
    assert after_hold(by_a_person)[0] is Remedy.WAIT


@pytest.mark.parametrize("because", [HeldFor.POLICY, HeldFor.TRANSIENT, HeldFor.MEMORY])
@given(target=st.integers(1, 300))
def test_a_pool_that_holds_every_job_ends_the_run_within_a_bound(because: HeldFor, target: int) -> None:
    released, holds = 0, 0
    while True:
        holds += 1
        remedy, _, _ = after_hold(
            Hold(because, "no", released=released, without_credit=holds, alive=target, target=target)
        )
        if remedy is Remedy.STOP:
            break
        released = released + 1 if remedy is Remedy.RELEASE else 0
        assert released <= (MAX_MEMORY_RAISES if because is HeldFor.MEMORY else MAX_RELEASES)
    bound = max(MIN_HOLDS, MAX_ROUNDS * target) + 1
    assert bound <= holds <= bound + (MAX_MEMORY_RAISES if because is HeldFor.MEMORY else 0)


@pytest.mark.parametrize("because", [each for each in HeldFor if each is not HeldFor.MEMORY])
@pytest.mark.parametrize(
    ("held", "spoken", "alive", "stops"), [(1, False, 3, False), (3, False, 9, True), (1, False, 0, True)]
)
def test_held_jobs_end_a_run_that_never_began(
    because: HeldFor, held: int, spoken: bool, alive: int, stops: bool
) -> None:
    remedy, _, reason = after_hold(Hold(because, "no image", held=held, alive=alive, target=9, any_reported=spoken))
    assert (remedy is Remedy.STOP) is stops
    assert not stops or "none has ever run" in reason


@pytest.mark.parametrize(("alive", "remedy"), [(1, Remedy.WAIT), (0, Remedy.STOP)])
def test_a_hold_that_every_job_would_have_ends_the_run_when_no_job_is_left(alive: int, remedy: Remedy) -> None:
    assert after_hold(Hold(HeldFor.JOB, "too large", alive=alive, target=4))[0] is remedy


def test_pauses_before_a_release_grow() -> None:
    pauses = [after_hold(Hold(HeldFor.TRANSIENT, "", released=n, alive=1))[1] for n in range(MAX_RELEASES)]
    assert pauses == [15.0, 60.0, 240.0]
    assert after_hold(Hold(HeldFor.TRANSIENT, "", released=MAX_RELEASES, alive=1))[0] is Remedy.REPLACE
