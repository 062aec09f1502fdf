"""Decisions about the number of workers, and about giving up a worker or the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UNEQUIPPED, UNFIT, RunError, StorageError
from master.telemetry.staffing import (
    MAX_BACKOFF_S,
    MAX_DEATHS,
    MAX_FAILED_STARTS,
    MAX_UNFIT,
    MIN_IDLE_JOBS,
    RECENT_S,
    SUBMIT_INTERVAL_S,
    Deaths,
    FailedStart,
    PresentWorker,
    Queue,
    is_silent,
    judge_deaths,
    judge_failed_starts,
    max_idle_jobs,
    release_time_s,
    submission_backoff,
    workers_to_release,
    workers_to_submit,
)

COUNTS = st.integers(0, 10_000)


@given(st.integers(0, 1000), st.integers(1, 1000), st.booleans())
def test_workers_are_filled_up_and_never_beyond(alive: int, wanted: int, work_left: bool) -> None:
    count, reason = workers_to_submit(alive, wanted, work_left=work_left)
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


def starts(count: int, status: int | None = 1, words: str = "") -> list[FailedStart]:
    """Return `count` failed starts, each on its own machine."""
    return [FailedStart(f"m{k}", status, words) for k in range(count)]


def test_workers_that_never_speak_end_the_run() -> None:
    assert judge_failed_starts(starts(MAX_FAILED_STARTS - 1))[0]
    again, reason = judge_failed_starts(starts(MAX_FAILED_STARTS))
    assert not again
    assert reason == "5 workers in a row ended before they had any work"
    assert judge_failed_starts(starts(10 * MAX_FAILED_STARTS), others_work=True)[0]
    assert judge_failed_starts(starts(MAX_UNFIT, UNFIT), others_work=True)[0], "who works is not stopped by who cannot"


def test_machines_that_lack_something_are_many_before_the_run_is_given_up() -> None:
    assert judge_failed_starts(starts(MAX_UNFIT - 1, UNFIT, "too little memory"))[0]
    again, reason = judge_failed_starts(starts(MAX_UNFIT, UNFIT, "too little memory"))
    assert not again and reason.startswith("20 workers in a row found that their machine lacks something")
    assert not judge_failed_starts([*starts(MAX_UNFIT - 1, UNFIT), *starts(MAX_FAILED_STARTS)])[0]


MISSING = "Unequipped: m{} cannot run this program: it takes torchvision, which Python does not find here"


def test_what_fails_in_the_same_way_on_two_machines_is_not_the_machines() -> None:
    first, second = (FailedStart(f"m{k}", UNEQUIPPED, MISSING.format(k)) for k in (1, 2))
    assert judge_failed_starts([first])[0] and judge_failed_starts([first, first])[0], "it may be the machine"
    again, reason = judge_failed_starts([first, second])
    assert (
        not again and reason.startswith("2 machines failed in the same way") and "so it is not the machines" in reason
    )
    assert judge_failed_starts([first, second], any_reported=True)[0], "the program has worked elsewhere"
    assert judge_failed_starts([first, second], others_work=True)[0], "others may find what these did not"
    assert judge_failed_starts([first, second._replace(words="Unequipped: it takes yaml")])[0]
    assert judge_failed_starts([first, second._replace(status=1)])[0]


@pytest.mark.parametrize("status", [UNFIT, RunError.exit_status, StorageError.exit_status, None])
def test_what_workers_say_of_their_machines_is_not_of_the_program(status: int | None) -> None:
    assert judge_failed_starts(starts(2, status, "no room on the disk"))[0]
    assert judge_failed_starts(starts(2, -9))[0], "who said nothing said nothing alike"


@given(st.floats(0, 1e9), st.floats(1, 1e6))
def test_a_worker_leaves_before_its_time_is_over_and_not_much_before(began_s: float, longest_s: float) -> None:
    at_s = release_time_s(began_s, longest_s)
    assert began_s + 0.94 * longest_s <= at_s <= began_s + longest_s - min(0.04 * longest_s, 599)


@pytest.mark.parametrize(("idle", "count"), [(0, 10), (4, 6), (10, 0), (12, 0)])
def test_no_more_wait_than_may(idle: int, count: int) -> None:
    found, _ = workers_to_submit(idle, 1000, work_left=True, queue=Queue(idle, most=10, started=500))
    assert found == count


@given(COUNTS, COUNTS, COUNTS, st.integers(1, 5000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_more_wait_than_the_pool_has_shown_to_take(
    idle: int, started: int, running: int, most: int, wait_s: float, life_s: float
) -> None:
    count, reason = max_idle_jobs(Queue(idle, most, started, running, wait_s, life_s))
    assert min(MIN_IDLE_JOBS, most) <= count <= most
    replaced = min(running, running * RECENT_S / life_s + 1) if life_s else 0
    assert count <= max(MIN_IDLE_JOBS, 2 * started, replaced)
    assert str(started) in reason


def negotiated(slots: int, a_cycle: int, cycles: int, *, cycle_s: float = 60.0) -> list[tuple[int, int]]:
    """Return (waiting, running) after each cycle of a pool that has `slots` places for the run's 10,000 workers, which
    do not end, and matches `started` jobs per cycle."""
    idle = running = 0
    history = []
    for cycle in range(cycles):
        started = min(idle, a_cycle, slots - running) if cycle else 0
        idle, running = idle - started, running + started
        for lately in (started, 0 if cycle_s > RECENT_S else started):  # at once, and when the cycle is nearly over
            queue = Queue(idle, 1000, lately, running, wait_s=cycle_s)
            idle += workers_to_submit(idle + running, 10_000, work_left=True, queue=queue)[0]
        history.append((idle, running))
    return history


@pytest.mark.parametrize("cycle_s", [60.0, 300.0])
def test_what_waits_doubles_while_the_pool_takes_all_of_it(cycle_s: float) -> None:
    history = negotiated(10_000, 300, 30, cycle_s=cycle_s)
    assert [idle for idle, _ in history[:6]] == [10, 20, 40, 80, 160, 320]
    assert {idle for idle, _ in history[8:]} == {600}  # two cycles of the pool, for a run of any length
    assert history[-1][1] - history[-2][1] == 300


def test_a_small_pool_is_not_flooded() -> None:
    history = negotiated(30, 300, 200)
    assert history[-1][1] == 30
    assert max(idle for idle, _ in history) <= 40
    assert max_idle_jobs(Queue(40, 1000, 0, 30, wait_s=3600.0, life_s=7200.0))[0] == MIN_IDLE_JOBS


def test_a_new_master_keeps_up_what_was_reached() -> None:
    """A new master has seen no start, while of 2,600 workers with lives of 45 minutes 58 end each minute."""
    queue = Queue(0, 1000, 0, 2600, wait_s=60.0, life_s=2700.0)
    assert max_idle_jobs(queue) == (58, "what of 2600 workers ends while a job waits; 0 started in the last 60 s")
    count, reason = workers_to_submit(2500, 2600, work_left=True, queue=queue)
    assert count == 58 and reason.startswith("2500 of 2600 are queued or running; 0 are queued, 58 may be: ")


def test_what_is_missing_is_gathered() -> None:
    lately, long_ago = (
        Queue(0, 1000, 300, quiet_s=quiet_s) for quiet_s in (0.9 * SUBMIT_INTERVAL_S, SUBMIT_INTERVAL_S)
    )
    assert workers_to_submit(2590, 2600, work_left=True, queue=lately)[0] == 0
    assert workers_to_submit(2590, 2600, work_left=True, queue=long_ago)[0] == 10
    assert workers_to_submit(2590, 2600, work_left=True)[0] == 10  # without a queue there is no limit


def test_who_is_out_of_reach_is_given_less_time() -> None:
    assert is_silent(0.0, 31.0, 120.0, out_of_reach=True)[0] and not is_silent(0.0, 31.0, 120.0)[0]


PRESENT = st.lists(st.tuples(st.booleans(), st.none() | st.floats(0.1, 100.0)), max_size=30)


@given(PRESENT, st.integers(1, 30))
def test_the_target_number_stays_and_no_better_worker_leaves(
    drawn: list[tuple[bool, float | None]], wanted: int
) -> None:
    present = [PresentWorker(f"w{k}", waits, None if waits else speed) for k, (waits, speed) in enumerate(drawn)]
    names, reason = workers_to_release(present, wanted)
    assert len(present) - len(names) == min(len(present), wanted) and len({*names}) == len(names)
    assert reason == f"{len(present)} are queued or running, wanted: {wanted}"
    leave, stay = ([w for w in present if (w.name in names) is gone] for gone in (True, False))
    assert not leave or all(worker.waits for worker in leave) or not any(worker.waits for worker in stay)
    fastest = max((worker.speed or 0.0 for worker in leave if not worker.waits), default=0.0)
    assert all((worker.speed or 0.0) >= fastest for worker in stay)


def test_of_equals_the_newest_leaves() -> None:
    assert workers_to_release([PresentWorker(f"w{k}", waits=False, speed=2.0) for k in range(4)], 2)[0] == ["w3", "w2"]


@given(st.lists(st.tuples(st.sampled_from(["signal SIGSEGV", "exit status 1"]), st.floats(0.0, 1e6)), max_size=60))
def test_repeated_deaths_stop_a_run_unless_a_worker_outlived_them(ends: list[tuple[str, float]]) -> None:
    deaths = Deaths()
    for way, lived_s in ends:
        deaths = deaths.another(way, lived_s)
    assert deaths.count == len(ends)
    assert deaths.longest_s == max((lived_s for _, lived_s in ends), default=0.0)
    assert judge_deaths(deaths, others_live_longer=False)[0] == (len(ends) < MAX_DEATHS)
    assert judge_deaths(deaths, others_live_longer=True)[0]


def test_the_ways_in_which_they_died_are_named_the_commonest_first() -> None:
    deaths = Deaths((("exit status 1", 2), ("signal SIGSEGV", 30)), 1.0)
    reason = "32 workers ended by themselves, and nothing was credited in between: 30 with signal SIGSEGV, 2 with exit"
    assert judge_deaths(deaths, others_live_longer=False)[1].startswith(reason)


def test_more_are_asked_for_ever_more_rarely_while_none_begins() -> None:
    waits = [submission_backoff(n, others_begin=False)[0] for n in range(MAX_FAILED_STARTS + 4)]
    assert waits == [0.0] * MAX_FAILED_STARTS + [1.0, 2.0, 4.0, 8.0]
    assert submission_backoff(10**6, others_begin=False)[0] == MAX_BACKOFF_S
    assert submission_backoff(10**6, others_begin=True)[0] == 0.0
