"""Who is at fault when f fails: a range that everybody fails on ends the run, a worker that alone fails never does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.state.failures import (
    DISTRUST,
    LACKING_S,
    LONG_REST_S,
    LONGEST_LACKING_S,
    MAX_FAILURES,
    MAX_PAUSE_S,
    MAX_TRIES,
    PAUSE_S,
    TRIES_MEANWHILE,
    Candidate,
    Failed,
    after_failure,
    after_give_up,
    long_rest_s,
    may_lease,
    open_failures,
    pause,
    pause_of_lacking,
    replaceable,
    rests,
    strikes,
)

Names = list[tuple[str, str]]  # (worker, machine)
APART = [("w1", "a"), ("w2", "b"), ("w3", "c"), ("w4", "d")]  # on machines of their own
TOGETHER = [(worker, "here") for worker, _ in APART]


def failed(*names: tuple[str, str]) -> tuple[Failed, ...]:
    return tuple(Failed(*name, 10) for name in names)


def candidates(names: Names) -> list[Candidate]:
    return [Candidate(*name) for name in names]


def ready(names: Names) -> Callable[[], Iterator[Candidate]]:
    return lambda: iter(candidates(names))


@pytest.mark.parametrize("all_", [APART, TOGETHER])
def test_three_different_workers_are_enough(all_: Names) -> None:
    again = [after_failure(failed(*all_[:k]), candidates(all_), queued=False) for k in (1, 2, 3)]
    assert [decision for decision, _ in again] == [True, True, False]
    assert again[0][1] == "1 of 3 workers failed on it; another worker will try"
    assert again[2][1] == "failed 3 times, by 3 workers"


@pytest.mark.parametrize("all_", [APART, TOGETHER])
def test_what_one_worker_fails_again_adds_nothing(all_: Names) -> None:
    assert after_failure(failed(*[all_[0]] * 50), candidates(all_), queued=False)[0]


@pytest.mark.parametrize("all_", [APART, TOGETHER])
def test_bad_machines_do_not_end_a_run_while_one_that_works_has_not_tried(all_: Names) -> None:
    good = Candidate("w9", "z", proven=True)
    crowd = [*candidates(all_), good] if all_ is APART else [*candidates(all_), good._replace(machine="here")]
    again, reason = after_failure(failed(*all_[:3]), crowd, queued=False)
    assert again and reason == "3 workers failed on it that have trained nothing; another worker will try that has"
    assert not may_lease(failed(*all_[:3]), crowd[3], lambda: iter(crowd)), "it might be bad as well"
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
    again = [after_failure(failed(*[APART[0]] * k), candidates(APART[:1]), queued=False) for k in (1, 2, 3)]
    assert [decision for decision, _ in again] == [True, True, False]
    assert again[0][1] == "try 1 of 3 failed; nobody else might take it"
    assert again[2][1] == "failed 3 times, and nobody else might take it"


def test_while_others_wait_for_a_machine_it_is_tried_for_a_minute() -> None:
    def after(tries: int) -> tuple[bool, str]:
        return after_failure(failed(*[APART[0]] * tries), candidates(APART[:1]), queued=True)

    assert [after(k)[0] for k in (1, MAX_TRIES, TRIES_MEANWHILE - 1, TRIES_MEANWHILE)] == [True, True, True, False]
    assert "others wait for a machine" in after(1)[1] and "another worker" not in after(1)[1]
    assert 60 < sum(pause(k)[0] for k in range(1, TRIES_MEANWHILE)) < 70


def test_crashes_of_one_machine_are_those_of_one_worker() -> None:
    lives = [(f"w{k}", "a") for k in range(1, 40, 4)]
    assert after_failure(failed(*lives), candidates(APART), queued=False)[0]


@pytest.mark.parametrize("all_", [APART, TOGETHER])
def test_a_range_goes_to_others_as_long_as_there_are_any(all_: Names) -> None:
    first, second = Candidate(*all_[0]), Candidate(*all_[1])
    assert not may_lease(failed(all_[0]), first, ready(all_))
    assert may_lease(failed(all_[0]), second, ready(all_))
    assert may_lease(failed(all_[0]), first, ready(all_[:1]))  # the others are gone, or fail
    assert may_lease(failed(*all_), first, ready(all_))


def test_who_never_failed_is_not_asked_for_the_others() -> None:
    def asked() -> Iterator[Candidate]:
        raise AssertionError("it costs what there are workers")

    assert may_lease((), Candidate("w1", "a"), asked)
    assert may_lease(failed(("w2", "b")), Candidate("w1", "a"), asked)


def test_a_failure_stands_until_its_vertex_is_credited() -> None:
    both = (Failed("w1", "a", 10), Failed("w2", "b", 20))
    assert open_failures(both, 9) == both
    assert open_failures(both, 10) == both[1:]
    assert open_failures(both, 20) == ()


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause(k)[0] for k in (1, 2, 3, 4)] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert pause(10_000)[0] == MAX_PAUSE_S and pause(0)[0] == 0.0
    assert pause(3)[1] == "failed 3 times in a row; no lease for 1 s"


def test_who_fails_on_and_on_is_replaced_unless_nobody_does_better() -> None:
    assert replaceable(MAX_FAILURES, others_work=True) == (
        True,
        f"failed {MAX_FAILURES} times in a row on what others do",
    )
    assert not replaceable(MAX_FAILURES - 1, others_work=True)[0]
    assert not replaceable(10 * MAX_FAILURES, others_work=False)[0]


def test_who_sent_what_none_should_weighs_more_than_who_failed() -> None:
    assert strikes(3, 0) == 3 and strikes(1, 2) == 1 + 2 * DISTRUST
    assert pause(0, 1)[0] == pause(DISTRUST)[0] == 2 * PAUSE_S
    assert pause(1, 1)[1] == (
        "failed 1 times in a row, of its machine's workers 1 given up for what they sent; no lease for 1 s"
    )
    assert pause(0, MAX_FAILURES)[1].endswith("no lease for 300 s, and no worker there while others work elsewhere")
    assert pause(MAX_FAILURES)[1].endswith("and no worker there for 60 minutes while others work elsewhere")


@pytest.mark.parametrize("others", [True, False])
def test_a_machine_rests_in_its_pause_and_longer_while_others_work(others: bool) -> None:
    longer_s = [long_rest_s(*against) for against in ((MAX_FAILURES - 1, 0), (MAX_FAILURES, 0), (0, MAX_FAILURES))]
    assert longer_s == [0.0, LONG_REST_S, math.inf], "who fails may do better later, who lies is trusted no more"
    for longer in longer_s:
        assert rests(10.0, 9.0, longer, lambda: others) == (True, "no worker starts there for 1 s")
    assert not rests(10.0, 10.0, 0.0, lambda: others)[0]
    assert rests(10.0, 9.0 + LONG_REST_S, LONG_REST_S, lambda: others)[0] is others, "alone it is tried again"
    assert not rests(10.0, 10.0 + LONG_REST_S, LONG_REST_S, lambda: others)[0]
    assert rests(10.0, 1e9, math.inf, lambda: others)[0] is others


def test_a_machine_that_lacks_something_is_tried_again_ever_more_rarely() -> None:
    assert [pause_of_lacking(k)[0] for k in (1, 2, 3)] == [LACKING_S, 2 * LACKING_S, 4 * LACKING_S]
    assert pause_of_lacking(10_000)[0] == LONGEST_LACKING_S


def test_a_run_ends_where_nothing_comes_of_a_machine_and_there_is_no_better_one() -> None:
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
def test_a_range_that_everybody_fails_on_stops_the_run(workers: int, machines: int, data: st.DataObject) -> None:
    """Whoever of those that may take it tries next; and soon."""
    crowd = [Candidate(f"w{k}", f"m{k % machines}") for k in range(workers)]
    so_far: tuple[Failed, ...] = ()
    for _ in range(MAX_TRIES):
        may = [who for who in crowd if may_lease(so_far, who, lambda: iter(crowd))]
        assert may, "nobody may take it: it would never end"
        so_far += (Failed(*data.draw(st.sampled_from(may))[:2], 1),)
        again, reason = after_failure(so_far, crowd, queued=False)
        others = [who for who in crowd if may_lease(so_far, who, lambda: iter(crowd)) and who[:2] != so_far[-1][:2]]
        assert others or "another worker will try" not in reason
    assert not again


@given(Workers, st.integers(1, 5), st.lists(st.integers(0, 5), max_size=40))
def test_no_number_of_bad_workers_stops_a_run_in_which_one_works(bad: int, machines: int, asks: list[int]) -> None:
    """On machines of its own, or all on one."""
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
    """Whoever asks, in whatever order: the bad one fails, and another trains the range."""
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
