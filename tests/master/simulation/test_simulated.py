"""The simulated back end beyond the contract (test_contract.py): lives of scripts, crashes, and masters that change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chunk_model.traces import TraceEvent
from master.backends.script import PlannedLife, Replay, Script, Steady
from master.simulation.faulty_network import VirtualClock
from master.simulation.simulated import Simulated, SimulatedPool
from master.simulation.world import START_S
from master.state.jobs import JobEvent, State


class Idler:
    """A worker that waits a second at a time until it is evicted or `after` seconds have passed; then calls `then`."""

    def __init__(self, then: Callable[[], None] = lambda: None, after: int = 10**9) -> None:
        self.is_interruptible = False
        self.woken: Callable[[], None] = lambda: None
        self.asked = False
        self._then = then
        self._left = after

    def life(self) -> Iterator[float]:
        while not self.asked and self._left:
            self._left -= 1
            self.is_interruptible = True
            yield 1.0
        self._then()

    def evict(self) -> None:
        self.asked = True
        self.woken()


class OneLife(Script):
    """A machine that offers the same life repeatedly."""

    slots = 1

    def __init__(self, life: PlannedLife) -> None:
        self._life = life

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, self._life.duration_s, None, self._life.graceful, self._life.grace_s)


def pool_of(script: Script, player: Callable[[], Idler] = Idler) -> tuple[VirtualClock, SimulatedPool]:
    clock = VirtualClock(START_S)
    return clock, SimulatedPool(clock, script, lambda worker, slot: player())


def fails() -> None:
    raise ValueError("the disk is full")


def contradicts_itself() -> None:
    raise AssertionError("a push goes back")


def last(events: list[JobEvent]) -> JobEvent:
    return events[-1]


def test_a_worker_whose_life_raises_is_lost_and_says_why() -> None:
    clock, pool = pool_of(Steady(1), lambda: Idler(fails, after=3))
    pool.submit("w1")
    clock.advance(START_S + 10)
    end = last(pool.poll())
    assert (end.state, end.exit_code, end.time_s) == (State.LOST, 1, START_S + 3)
    assert end.detail == "exit status 1: ValueError: the disk is full"
    assert pool.tally.crashes == 1
    assert pool.tally.kills == 0


def test_a_crash_frees_the_machine() -> None:
    clock, pool = pool_of(Steady(1), lambda: Idler(fails, after=1))
    for worker in ("w1", "w2"):
        pool.submit(worker)
    clock.advance(START_S + 10)
    assert [e.worker for e in pool.poll() if e.state is State.LOST] == ["w1", "w2"]


def test_a_simulation_that_contradicts_itself_does_not_go_on() -> None:
    clock, pool = pool_of(Steady(1), lambda: Idler(contradicts_itself, after=1))
    pool.submit("w1")
    with pytest.raises(AssertionError, match="goes back"):
        clock.advance(START_S + 10)


@pytest.mark.parametrize(
    ("planned", "at_s", "graceful", "detail"),
    [
        (PlannedLife(0, 100.0), 100.0, False, "SIGKILL"),
        (PlannedLife(0, 100.0, None, True, 30.0), 100.0, True, "SIGTERM, left with exit status 0"),
        (PlannedLife(0, 100.0, None, True, 0.0), 100.0, False, "SIGKILL"),
    ],
)
def test_the_script_ends_a_life(planned: PlannedLife, at_s: float, graceful: bool, detail: str) -> None:
    clock, pool = pool_of(OneLife(planned))
    pool.submit("w1")
    clock.advance(START_S + 150)
    end = last(pool.poll())
    assert (end.state, end.time_s - START_S, end.graceful, end.detail) == (State.EVICTED, at_s, graceful, detail)
    assert not end.cancelled
    assert (pool.tally.kills, pool.tally.graceful) == (1, graceful)


def test_a_worker_that_does_not_leave_is_killed_after_the_grace() -> None:
    class Deaf(Idler):
        def evict(self) -> None:
            """Ignore the eviction."""

    clock, pool = pool_of(OneLife(PlannedLife(0, 100.0, None, True, 30.0)), Deaf)
    pool.submit("w1")
    clock.advance(START_S + 200)
    end = last(pool.poll())
    assert (end.time_s - START_S, end.graceful, end.detail) == (130.0, True, "SIGTERM, then SIGKILL")


def test_a_cancelled_worker_is_no_kill_and_the_script_does_not_end_it_again() -> None:
    clock, pool = pool_of(OneLife(PlannedLife(0, 100.0)))
    backend = Simulated(pool)
    backend.submit("w1")
    clock.advance(START_S + 99)
    backend.cancel("w1", grace_s=50.0)
    clock.advance(START_S + 200)
    end = last(backend.poll())
    assert (end.state, end.cancelled, end.graceful) == (State.EVICTED, True, True)
    assert pool.tally.kills == 0


def test_the_end_of_a_stay_in_a_trace_is_not_mistaken_for_its_last_instant() -> None:
    """On the clock a stay ends a rounding before or after the trace's own number, which offered it again and again."""
    ends = [5.922125004, 18.426238885682285, 1 / 3, 1000.1]
    for end_s in ends:
        clock, pool = pool_of(Replay((TraceEvent(0.0, "a", True), TraceEvent(end_s, "a", False)), graceful_share=0.0))
        for number in range(3):
            pool.submit(f"w{number}")
        clock.advance(START_S + 2000)
        assert pool.tally.kills == 1
        assert pool.living() == ["w1", "w2"]


def test_the_next_master_finds_who_runs_and_who_waits() -> None:
    clock, pool = pool_of(Steady(1))
    before = Simulated(pool, crashed=lambda: True)
    for worker in ("w1", "w2", "w3"):
        before.submit(worker)
    clock.advance(START_S + 5)
    before.cancel("w2")
    before.close()
    after = Simulated(pool)
    assert after.inherit(keep=True) == ["w1", "w3"]
    assert [(e.worker, e.state) for e in after.poll()] == [("w1", State.RUNNING), ("w3", State.QUEUED)]


def test_a_master_that_does_not_want_them_ends_them_and_hears_nothing() -> None:
    clock, pool = pool_of(Steady(1))
    Simulated(pool, crashed=lambda: True).submit("w1")
    clock.advance(START_S + 5)
    after = Simulated(pool)
    assert after.inherit(keep=False) == []
    assert after.poll() == []
    assert pool.living() == []


def test_workers_live_on_when_a_master_leaves_them() -> None:
    clock, pool = pool_of(Steady(1))
    backend = Simulated(pool)
    backend.submit("w1")
    backend.leave()
    backend.close()
    clock.advance(START_S + 5)
    assert pool.living() == ["w1"]


def test_a_job_waits_in_the_queue_as_long_as_it_must() -> None:
    clock = VirtualClock(START_S)
    pool = SimulatedPool(clock, Steady(2), lambda worker, slot: Idler(), wait_s=30.0)
    pool.submit("w1")
    clock.advance(START_S + 100)
    assert [e.time_s - START_S for e in pool.poll()] == [0.0, 30.0]
