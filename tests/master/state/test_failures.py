"""Blame for failures of f: a range on which all workers fail ends the run; a worker that fails alone never does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.state.failures import (
    DISTRUST_STRIKES,
    LONG_REST_S,
    MAX_FAILURES,
    MAX_PAUSE_S,
    MAX_TRIES,
    MAX_TRIES_WHILE_QUEUED,
    MAX_UNFIT_REST_S,
    MIN_PAUSE_S,
    MIN_UNFIT_REST_S,
    Candidate,
    Failed,
    after_failure,
    after_give_up,
    is_resting,
    long_rest_s,
    may_lease,
    open_failures,
    pause,
    rest_of_unfit_machine,
    should_replace,
    strikes,
)

Names = list[tuple[str, str]]  # (worker, machine)
SEPARATE = [("w1", "a"), ("w2", "b"), ("w3", "c"), ("w4", "d")]  # each on its own machine
TOGETHER = [(worker, "here") for worker, _ in SEPARATE]


def failed(*names: tuple[str, str]) -> tuple[Failed, ...]:
    return tuple(Failed(*name, 10) for name in names)


def candidates(names: Names) -> list[Candidate]:
    return [Candidate(*name) for name in names]


def ready(names: Names) -> Callable[[], Iterator[Candidate]]:
    return lambda: iter(candidates(names))


@pytest.mark.parametrize("all_", [SEPARATE, TOGETHER])
def test_three_different_workers_are_enough(all_: Names) -> None:
    again = [after_failure(failed(*all_[:k]), candidates(all_), queued=False) for k in (1, 2, 3)]
    assert [decision for decision, _ in again] == [True, True, False]
    assert again[0][1] == "1 of 3 workers failed on it; another worker will try"
    assert again[2][1] == "failed 3 times, by 3 workers"


@pytest.mark.parametrize("all_", [SEPARATE, TOGETHER])
def test_repeated_failures_of_one_worker_count_once(all_: Names) -> None:
    assert after_failure(failed(*[all_[0]] * 50), candidates(all_), queued=False)[0]


@pytest.mark.parametrize("all_", [SEPARATE, TOGETHER])
def test_bad_machines_do_not_end_a_run_while_a_proven_worker_has_not_tried(all_: Names) -> None:
    good = Candidate("w9", "z", proven=True)
    crowd = [*candidates(all_), good] if all_ is SEPARATE else [*candidates(all_), good._replace(machine="here")]
    again, reason = after_failure(failed(*all_[:3]), crowd, queued=False)
    assert again and reason == "3 workers failed on it, none of which has trained anything yet; another worker will try"
    assert not may_lease(failed(*all_[:3]), crowd[3], lambda: iter(crowd)), "an unproven worker may be bad as well"
    assert may_lease(failed(*all_[:3]), crowd[4], lambda: iter(crowd))
    last = Failed(*crowd[4][:2], 10, proven=True)
    assert not after_failure((*failed(*all_[:3]), last), crowd, queued=False)[0]
    assert not after_failure((*failed(*all_[:2]), last), crowd, queued=False)[0]


def test_workers_of_one_machine_count_once_where_there_are_several_machines() -> None:
    crowd = [*TOGETHER, ("w5", "there")]
    assert after_failure(failed(*TOGETHER), candidates(crowd), queued=False)[0]
    assert not may_lease(failed(TOGETHER[0]), Candidate(*TOGETHER[1]), ready(crowd))
    assert may_lease(failed(TOGETHER[0]), Candidate("w5", "there"), ready(crowd))


def test_a_single_worker_has_three_tries() -> None:
    again = [after_failure(failed(*[SEPARATE[0]] * k), candidates(SEPARATE[:1]), queued=False) for k in (1, 2, 3)]
    assert [decision for decision, _ in again] == [True, True, False]
    assert again[0][1] == "try 1 of 3 failed; no other worker can take it"
    assert again[2][1] == "failed 3 times, and no other worker can take it"


def test_a_single_worker_retries_for_a_minute_while_others_wait_for_a_machine() -> None:
    def after(tries: int) -> tuple[bool, str]:
        return after_failure(failed(*[SEPARATE[0]] * tries), candidates(SEPARATE[:1]), queued=True)

    last = MAX_TRIES_WHILE_QUEUED
    assert [after(k)[0] for k in (1, MAX_TRIES, last - 1, last)] == [True, True, True, False]
    assert "others wait for a machine" in after(1)[1] and "another worker" not in after(1)[1]
    assert 60 < sum(pause(k)[0] for k in range(1, MAX_TRIES_WHILE_QUEUED)) < 70


def test_crashes_of_all_workers_of_a_machine_count_once() -> None:
    lives = [(f"w{k}", "a") for k in range(1, 40, 4)]
    assert after_failure(failed(*lives), candidates(SEPARATE), queued=False)[0]


@pytest.mark.parametrize("all_", [SEPARATE, TOGETHER])
def test_a_failed_range_goes_to_other_workers_first(all_: Names) -> None:
    first, second = Candidate(*all_[0]), Candidate(*all_[1])
    assert not may_lease(failed(all_[0]), first, ready(all_))
    assert may_lease(failed(all_[0]), second, ready(all_))
    assert may_lease(failed(all_[0]), first, ready(all_[:1]))  # the others are gone, or fail
    assert may_lease(failed(*all_), first, ready(all_))


def test_the_usual_lease_needs_no_pass_over_all_workers() -> None:
    def asked() -> Iterator[Candidate]:
        raise AssertionError("a pass over all workers")

    assert may_lease((), Candidate("w1", "a"), asked)
    assert may_lease(failed(("w2", "b")), Candidate("w1", "a"), asked)


def test_a_failure_stands_until_its_vertex_is_credited() -> None:
    both = (Failed("w1", "a", 10), Failed("w2", "b", 20))
    assert open_failures(both, 9) == both
    assert open_failures(both, 10) == both[1:]
    assert open_failures(both, 20) == ()


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause(k)[0] for k in (1, 2, 3, 4)] == [MIN_PAUSE_S, 2 * MIN_PAUSE_S, 4 * MIN_PAUSE_S, 8 * MIN_PAUSE_S]
    assert pause(10_000)[0] == MAX_PAUSE_S and pause(0)[0] == 0.0
    assert pause(3)[1] == "failed 3 times in a row; no lease for 1 s"


def test_a_worker_that_keeps_failing_is_replaced_if_others_succeed() -> None:
    assert should_replace(MAX_FAILURES, others_work=True) == (
        True,
        f"failed {MAX_FAILURES} times in a row while others succeed",
    )
    assert not should_replace(MAX_FAILURES - 1, others_work=True)[0]
    assert not should_replace(10 * MAX_FAILURES, others_work=False)[0]


def test_distrust_counts_more_than_a_failure() -> None:
    assert strikes(3, 0) == 3 and strikes(1, 2) == 1 + 2 * DISTRUST_STRIKES
    assert pause(0, 1)[0] == pause(DISTRUST_STRIKES)[0] == 2 * MIN_PAUSE_S
    assert pause(1, 1)[1] == (
        "failed 1 times in a row, 1 workers of its machine given up for what they sent; no lease for 1 s"
    )
    assert pause(0, MAX_FAILURES)[1].endswith("no lease for 300 s, and no worker there while others work elsewhere")
    assert pause(MAX_FAILURES)[1].endswith("and no worker there for 60 minutes while others work elsewhere")


@pytest.mark.parametrize("others", [True, False])
def test_a_machine_rests_in_its_pause_and_longer_while_others_work(others: bool) -> None:
    longer_s = [long_rest_s(*against) for against in ((MAX_FAILURES - 1, 0), (MAX_FAILURES, 0), (0, MAX_FAILURES))]
    assert longer_s == [0.0, LONG_REST_S, math.inf], "failures may stop, distrust is final"
    for longer in longer_s:
        assert is_resting(10.0, 9.0, longer, lambda: others) == (True, "no worker starts there for 1 s")
    assert not is_resting(10.0, 10.0, 0.0, lambda: others)[0]
    assert is_resting(10.0, 9.0 + LONG_REST_S, LONG_REST_S, lambda: others)[0] is others, (
        "a machine that is alone is retried"
    )
    assert not is_resting(10.0, 10.0 + LONG_REST_S, LONG_REST_S, lambda: others)[0]
    assert is_resting(10.0, 1e9, math.inf, lambda: others)[0] is others


def test_the_rest_of_an_unfit_machine_doubles() -> None:
    assert [rest_of_unfit_machine(k)[0] / MIN_UNFIT_REST_S for k in (1, 2, 3)] == [1, 2, 4]
    assert rest_of_unfit_machine(10_000)[0] == MAX_UNFIT_REST_S


def test_a_run_ends_if_a_machine_achieves_nothing_and_no_other_does_better() -> None:
    again, reason = after_give_up(MAX_FAILURES, credited=False, others_run=False)
    assert not again and "no machine does better" in reason
    for against, credited, others in (
        (MAX_FAILURES - 1, False, False),
        (MAX_FAILURES, True, False),
        (MAX_FAILURES, False, True),
    ):
        assert after_give_up(against, credited=credited, others_run=others)[0]


Workers = st.integers(1, 6)
Machines = st.integers(1, 6)


@given(Workers, Machines, st.data())
def test_a_range_on_which_every_worker_fails_stops_the_run(workers: int, machines: int, data: st.DataObject) -> None:
    """Within `MAX_TRIES` failures, in any order of the workers that may take it."""
    crowd = [Candidate(f"w{k}", f"m{k % machines}") for k in range(workers)]
    so_far: tuple[Failed, ...] = ()
    for _ in range(MAX_TRIES):
        may = [who for who in crowd if may_lease(so_far, who, lambda: iter(crowd))]
        assert may, "no worker may take it: the run would never end"
        so_far += (Failed(*data.draw(st.sampled_from(may))[:2], 1),)
        again, reason = after_failure(so_far, crowd, queued=False)
        others = [who for who in crowd if may_lease(so_far, who, lambda: iter(crowd)) and who[:2] != so_far[-1][:2]]
        assert others or "another worker will try" not in reason
    assert not again


@given(Workers, st.integers(1, 5), st.lists(st.integers(0, 5), max_size=40))
def test_no_number_of_bad_workers_stops_a_run_with_a_good_one(bad: int, machines: int, asks: list[int]) -> None:
    """The good one is on its own machine, or all are on one."""
    crowd = [Candidate(f"w{k}", f"m{k % machines}") for k in range(bad)]
    crowd.append(Candidate("good", "m0" if machines == 1 else "other", proven=True))
    so_far: tuple[Failed, ...] = ()
    for ask in asks:
        who = crowd[ask % len(crowd)]
        if may_lease(so_far, who, lambda: iter(crowd)):
            so_far = open_failures(so_far, 1) if who.proven else (*so_far, Failed(*who[:2], 1))
            assert not so_far or after_failure(so_far, crowd, queued=False)[0]
    assert may_lease(so_far, crowd[-1], lambda: iter(crowd))


@given(st.integers(2, 6), st.integers(1, 6), st.integers(0, 5), st.lists(st.integers(0, 5), max_size=40))
def test_one_bad_worker_never_stops_a_run(workers: int, machines: int, bad: int, asks: list[int]) -> None:
    """In any order of requests: the bad one fails, and another trains the range."""
    crowd = [Candidate(f"w{k}", f"m{k % machines}") for k in range(workers)]
    bad %= workers
    so_far: tuple[Failed, ...] = ()
    for ask in asks:
        who = crowd[ask % workers]
        if not may_lease(so_far, who, lambda: iter(crowd)):
            continue
        if who != crowd[bad]:
            so_far = open_failures(so_far, 1)
            continue
        so_far += (Failed(*who[:2], 1),)
        assert after_failure(so_far, crowd, queued=False)[0]
