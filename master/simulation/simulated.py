"""The simulated back end: the machines of a script under a virtual clock, and workers that are stepped.

The pool outlives every master, as a real one does: its workers train on while no master is there, and the next one
inherits them. Everything in it happens at planned instants of one clock, in the order of the planning, so the same
seed gives the same run.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol, final

from gridml.errors import RunError, UsageError
from master.backends.script import PlannedLife, Script
from master.simulation.faulty_network import VirtualClock
from master.state.jobs import Backend, JobEvent, State


class SimulatedWorker(Protocol):
    """A worker process of a simulation."""

    interruptible: bool  # whether the wait that was yielded last may be cut short
    woken: Callable[[], None]  # the worker calls it when something has come that such a wait was for

    def life(self) -> Iterator[float]:
        """Everything it does; yields the seconds to wait before it goes on, and ends when the process does.

        An exception is a crash of the process (exit status 1), SystemExit its exit status. AssertionError is neither:
        it says that the simulation itself is wrong, and passes through.
        """

    def evict(self) -> None:
        """SIGTERM: somebody asks it to leave."""


Hire = Callable[[str, int], SimulatedWorker]  # (worker, slot): starts its process


@dataclass
class _Job:
    worker: str
    slot: int
    life: PlannedLife
    began_s: float
    process: SimulatedWorker
    steps: Iterator[float]
    wake: int = 0  # only the newest planned wake counts
    ending: bool = False  # somebody wants its end: the first one is the cause,
    cancelled: bool = False  # which was the master,
    graceful: bool = False  # with SIGTERM first
    ended: bool = False


@dataclass
class Tally:
    """What happened to machines, for the report of a simulation. A cancelled job is no kill."""

    kills: int = 0
    graceful: int = 0
    crashes: int = 0
    lived_s: float = 0.0


@dataclass(frozen=True)
class Negotiation:
    """How a pool matches jobs with machines: every `every_s` seconds, and no more than `most` of a run at a time."""

    every_s: float
    most: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s > 0):
            raise UsageError(f"a pool matches jobs every {self.every_s} s; expected a number of seconds above 0.")
        if self.most < 1:
            raise UsageError(f"a pool matches {self.most} jobs at a time; expected at least 1.")


@final
class SimulatedPool:
    """Machines and workers. `hire` starts a worker's process; a job waits `wait_s` in the queue at least, and for the
    next `negotiation`, where the pool has any."""

    def __init__(
        self,
        clock: VirtualClock,
        script: Script,
        hire: Hire,
        *,
        wait_s: float = 0.0,
        negotiation: Negotiation | None = None,
    ) -> None:
        self._clock = clock
        self._negotiation = negotiation
        self._negotiates_s: float | None = None  # when it is planned to do so next
        self._script = script
        self._hire = hire
        self._wait_s = wait_s
        self._start_s = clock.now_s
        self._names: set[str] = set()
        self._queue: deque[tuple[str, float]] = deque()  # (worker, when it may start); withdrawn ones are passed over
        self._queued: set[str] = set()
        self._jobs: dict[str, _Job] = {}
        self._hosted = [0] * script.slots
        self._free: list[tuple[float, int]] = []  # (when it opens, slot)
        self._offers: dict[int, PlannedLife] = {}
        self._avoided: frozenset[str] = frozenset()
        self._resting: list[tuple[float, int]] = []  # what would be free, but is avoided
        self._events: list[JobEvent] = []
        self.tally = Tally()
        for slot in range(script.slots):
            self._offer(slot, 0.0)

    # --- what a master asks

    def submit(self, worker: str) -> None:
        """Raises UsageError for a name that was used before."""
        if worker in self._names or not worker:
            raise UsageError(f"got the worker name {worker!r}, expected one that is new in this run")
        self._names.add(worker)
        self._queued.add(worker)
        self._queue.append((worker, self._clock.now_s + self._wait_s))
        self._events.append(JobEvent(self._clock.now_s, worker, State.QUEUED))
        self._plan_match(self._clock.now_s + self._wait_s)

    def poll(self) -> list[JobEvent]:
        events, self._events = self._events, []
        return events

    def cancel(self, worker: str, grace_s: float = 0.0) -> None:
        job = self._jobs.get(worker)
        if job is not None:
            self._ask(job, grace_s, cancelled=True)
        elif worker in self._queued:
            self._queued.discard(worker)
            self._events.append(
                JobEvent(self._clock.now_s, worker, State.EVICTED, detail="cancelled while queued", cancelled=True)
            )

    def avoid(self, machines: Collection[str]) -> None:
        """Start no worker on these machines, and on no others but these."""
        self._avoided = frozenset(machines)
        for free in self._resting:
            heapq.heappush(self._free, free)
        self._resting = []
        self._plan_match(self._clock.now_s)

    def living(self) -> list[str]:
        """Workers that run, then those that are queued."""
        return [*self._jobs, *(name for name, _ in self._queue if name in self._queued)]

    def report_again(self) -> None:
        """For a master that inherits: the state that everybody is in."""
        self._events = []
        for worker in self.living():
            job = self._jobs.get(worker)
            if job is None:
                self._events.append(JobEvent(self._clock.now_s, worker, State.QUEUED))
            else:
                self._events.append(JobEvent(self._clock.now_s, worker, State.RUNNING, self._script.machine(job.slot)))

    def cancel_all(self) -> None:
        for worker in self.living():
            self.cancel(worker)

    # --- machines

    def _offer_again(self, slot: int, life: PlannedLife) -> None:
        """A machine is free after a life, or after one that nobody lived."""
        free_s = self._clock.now_s - self._start_s
        if life.closes_s is not None and self._start_s + life.closes_s <= self._clock.now_s:
            free_s = max(free_s, life.closes_s)  # else rounding can leave an instant of it, for ever
        self._offer(slot, free_s)

    def _offer(self, slot: int, free_s: float) -> None:
        life = self._script.life(slot, self._hosted[slot], free_s)
        if life is not None:
            self._offers[slot] = life
            heapq.heappush(self._free, (life.opens_s, slot))
            self._plan_match(self._start_s + life.opens_s)

    def _plan_match(self, at_s: float) -> None:
        """Match jobs with machines at an instant, or at the first negotiation after it."""
        if self._negotiation is None:
            self._clock.at(at_s, self._match)
            return
        at_s = self._start_s + self._negotiation.every_s * math.ceil((at_s - self._start_s) / self._negotiation.every_s)
        if self._negotiates_s is None or at_s < self._negotiates_s:
            self._negotiates_s = at_s
            self._clock.at(at_s, lambda: self._negotiate(at_s))

    def _negotiate(self, at_s: float) -> None:
        """Match no more jobs than a negotiation does, and the others in the next."""
        if self._negotiation is None or self._negotiates_s != at_s:
            return  # an earlier one was planned since
        self._negotiates_s = None
        self._match(self._negotiation.most)
        if self._queue and self._free:
            self._plan_match(at_s + self._negotiation.every_s)

    def _match(self, most: float = math.inf) -> None:
        """Give free machines to jobs that have waited long enough, to `most` of them."""
        now = self._clock.now_s
        while self._queue and self._free and most > 0:
            worker, ready_s = self._queue[0]
            if worker not in self._queued:
                self._queue.popleft()
                continue
            opens_s, slot = self._free[0]
            if ready_s > now or self._start_s + opens_s > now:
                return
            heapq.heappop(self._free)
            if self._script.machine(slot) in self._avoided:
                self._resting.append((opens_s, slot))
                continue
            life = self._offers.pop(slot)
            if life.closes_s is not None and self._start_s + life.closes_s <= now:  # it came and went
                self._offer_again(slot, life)
                continue
            self._queue.popleft()
            self._queued.discard(worker)
            self._start(worker, slot, life)
            most -= 1

    def _start(self, worker: str, slot: int, life: PlannedLife) -> None:
        self._hosted[slot] += 1
        now = self._clock.now_s
        process = self._hire(worker, slot)
        job = _Job(worker, slot, life, now, process, process.life())
        process.woken = lambda: self._woken(job)
        self._jobs[worker] = job
        self._events.append(JobEvent(self._clock.now_s, worker, State.RUNNING, self._script.machine(slot)))
        ends_s = life.ends_s(now - self._start_s)
        if ends_s is not None:
            self._clock.at(self._start_s + ends_s, lambda: self._take(job))
        self._clock.at(now, lambda: self._step(job, 0))

    def _take(self, job: _Job) -> None:
        """The machine is taken away."""
        if not job.ended and not job.ending:
            grace_s = job.life.grace_s if job.life.graceful else 0.0
            self.tally.kills += 1
            self.tally.graceful += grace_s > 0
            self._ask(job, grace_s, cancelled=False)

    def _ask(self, job: _Job, grace_s: float, *, cancelled: bool) -> None:
        """SIGTERM and, after the grace, SIGKILL; or SIGKILL at once. Who asks later may only shorten the grace."""
        first, job.ending = not job.ending, True
        if first:
            job.cancelled, job.graceful = cancelled, grace_s > 0
        how = ("SIGTERM, then SIGKILL" if job.graceful else "SIGKILL") + (" (cancelled)" if job.cancelled else "")
        if grace_s <= 0:
            self._end(job, State.EVICTED, how)
            return
        self._clock.at(self._clock.now_s + grace_s, lambda: self._end(job, State.EVICTED, how))
        if first:
            job.process.evict()

    def _woken(self, job: _Job) -> None:
        if not job.ended and job.process.interruptible:
            job.process.interruptible = False
            self._plan(job, 0.0)

    def _plan(self, job: _Job, seconds: float) -> None:
        job.wake += 1
        wake = job.wake
        self._clock.at(self._clock.now_s + seconds, lambda: self._step(job, wake))

    def _step(self, job: _Job, wake: int) -> None:
        """Let a worker do what is due."""
        if job.ended or wake != job.wake:
            return
        try:
            seconds = next(job.steps)
            while seconds <= 0:
                seconds = next(job.steps)
        except StopIteration:
            self._left(job, 0, "exit status 0")
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
            self._left(job, code, f"exit status {code}")
        except AssertionError:
            raise
        except Exception as error:
            self._left(job, 1, f"exit status 1: {type(error).__name__}: {error}")
        else:
            self._plan(job, seconds)

    def _left(self, job: _Job, code: int, how: str) -> None:
        """Its process ended by itself: evicted all the same, if it was asked to."""
        if job.ending:
            self._end(job, State.EVICTED, f"SIGTERM, left with {how}" + (" (cancelled)" if job.cancelled else ""), code)
            return
        self.tally.crashes += code != 0
        self._end(job, State.LOST if code else State.FINISHED, how, code)

    def _end(self, job: _Job, state: State, detail: str, exit_code: int | None = None) -> None:
        if job.ended:
            return
        job.ended = True
        job.process.woken = lambda: None
        job.steps = iter(())  # whatever it held can go
        del self._jobs[job.worker]
        now = self._clock.now_s
        self.tally.lived_s += now - job.began_s
        self._events.append(
            JobEvent(
                self._clock.now_s,
                job.worker,
                state,
                self._script.machine(job.slot),
                detail=detail,
                graceful=job.graceful,
                exit_code=exit_code,
                cancelled=job.cancelled,
            )
        )
        self._offer_again(job.slot, job.life)


@final
class Simulated(Backend):
    """One master's hold on a pool. `crashed()` says whether the master was killed: then nobody cancels anything, and
    `reached` hears of a job before it is submitted, so that it may be killed there."""

    name = "simulated"

    def __init__(
        self,
        pool: SimulatedPool,
        crashed: Callable[[], bool] = lambda: False,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._pool = pool
        self._crashed = crashed
        self._reached = reached
        self._closed = False

    def inherit(self, *, keep: bool) -> list[str]:
        living = self._pool.living()
        if not keep:
            self._pool.cancel_all()
            self._pool.poll()
            return []
        self._pool.report_again()
        return living

    def submit(self, worker: str) -> None:
        """Raises UsageError for a name that was used before, RunError after `close`."""
        if self._closed:
            raise RunError(f"worker {worker} was submitted to a simulated pool that is closed: start a new one")
        self._reached("submit")
        self._pool.submit(worker)

    def poll(self) -> list[JobEvent]:
        return self._pool.poll()

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        self._pool.cancel(worker, grace_s)

    def avoid(self, machines: Collection[str]) -> None:
        self._pool.avoid(machines)

    def leave(self) -> None:
        self._closed = True

    def close(self) -> None:
        if not self._closed and not self._crashed():
            self._pool.cancel_all()
        self._closed = True
