"""However a pool holds jobs, what is done about it is bounded, and a person is asked for only what a person can do."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.state.jobs import FEWEST_HOLDS, MAX_RAISES, MAX_RELEASES, MAX_ROUNDS, HeldFor, Hold, Remedy, after_hold

HOLDS = st.builds(
    Hold,
    st.sampled_from(HeldFor),
    st.just("no image"),
    released=st.integers(0, 10),
    fruitless=st.integers(0, 10_000),
    held=st.integers(1, 1000),
    alive=st.integers(0, 1000),
    asked=st.integers(1, 1000),
    spoken=st.booleans(),
)


@given(HOLDS)
def test_a_remedy_comes_with_a_reason(hold: Hold) -> None:
    remedy, after_s, reason = after_hold(hold)
    assert reason
    assert after_s >= 0 and (remedy is Remedy.RELEASE or not after_s)
    assert remedy is not Remedy.STOP or hold.reason in reason


@given(HOLDS)
def test_only_what_a_person_can_mend_waits_for_one(hold: Hold) -> None:
    if after_hold(hold)[0] is Remedy.WAIT:
        assert hold.because in (HeldFor.PERSON, HeldFor.ITSELF)


@given(HOLDS)
def test_a_person_who_holds_jobs_does_not_end_a_run_that_began(hold: Hold) -> None:
    by_a_person = dataclasses.replace(hold, because=HeldFor.PERSON, spoken=True)
    assert after_hold(by_a_person)[0] is Remedy.WAIT


@pytest.mark.parametrize("because", [HeldFor.POLICY, HeldFor.TROUBLE, HeldFor.MEMORY])
@given(asked=st.integers(1, 300))
def test_a_pool_that_holds_every_job_ends_the_run_within_a_bound(because: HeldFor, asked: int) -> None:
    released, holds = 0, 0
    while True:
        holds += 1
        remedy, _, _ = after_hold(Hold(because, "no", released=released, fruitless=holds, alive=asked, asked=asked))
        if remedy is Remedy.STOP:
            break
        released = released + 1 if remedy is Remedy.RELEASE else 0
        assert released <= (MAX_RAISES if because is HeldFor.MEMORY else MAX_RELEASES)
    bound = max(FEWEST_HOLDS, MAX_ROUNDS * asked) + 1
    assert bound <= holds <= bound + (MAX_RAISES if because is HeldFor.MEMORY else 0)


@pytest.mark.parametrize("because", [each for each in HeldFor if each is not HeldFor.MEMORY])
@pytest.mark.parametrize(
    ("held", "spoken", "alive", "stops"), [(1, False, 3, False), (3, False, 9, True), (1, False, 0, True)]
)
def test_held_jobs_end_a_run_that_never_began(
    because: HeldFor, held: int, spoken: bool, alive: int, stops: bool
) -> None:
    remedy, _, reason = after_hold(Hold(because, "no image", held=held, alive=alive, asked=9, spoken=spoken))
    assert (remedy is Remedy.STOP) is stops
    assert not stops or "none has ever run" in reason


@pytest.mark.parametrize(("alive", "remedy"), [(1, Remedy.WAIT), (0, Remedy.STOP)])
def test_what_no_other_job_does_better_ends_the_run_when_nobody_is_left(alive: int, remedy: Remedy) -> None:
    assert after_hold(Hold(HeldFor.ITSELF, "too large", alive=alive, asked=4))[0] is remedy


def test_pauses_before_a_release_grow() -> None:
    pauses = [after_hold(Hold(HeldFor.TROUBLE, "", released=n, alive=1))[1] for n in range(MAX_RELEASES)]
    assert pauses == [15.0, 60.0, 240.0]
    assert after_hold(Hold(HeldFor.TROUBLE, "", released=MAX_RELEASES, alive=1))[0] is Remedy.REPLACE
