"""The simulated back end: the machines of a script, and simulated workers on them, under a virtual clock.

Like a real pool, the simulated pool outlives each master. Its workers continue to train while no master runs, and the
next master inherits them. Everything happens in actions that one clock runs in a fixed order, so the same seed gives
the same run.
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
    """A simulated worker process."""

    is_interruptible: bool  # True: the wait that `life` yielded last can be ended early
    woken: Callable[[], None]  # set by the pool; the worker calls it to end an interruptible wait early

    def life(self) -> Iterator[float]:
        """Run the process: yield the seconds of each wait; the generator ends when the process ends.

        SystemExit ends the process with its exit status, any other exception with status 1, as a crash. AssertionError
        is raised to the caller, because it reports a bug in the simulation.
        """

    def evict(self) -> None:
        """Handle SIGTERM."""


Hire = Callable[[str, int], SimulatedWorker]  # starts the process of a worker; called with (worker, slot)


@dataclass
class _Job:
    """A job that runs on a machine."""

    worker: str
    slot: int  # slot of its machine
    life: PlannedLife  # the present life of its machine
    began_s: float
    process: SimulatedWorker
    steps: Iterator[float]  # `process.life()`
    wake: int = 0  # number of the newest planned step; earlier planned steps do nothing
    ending: bool = False  # True: its end was requested; only the first request sets the next two fields
    cancelled: bool = False  # the master requested the end
    graceful: bool = False  # SIGTERM comes before SIGKILL
    ended: bool = False


@dataclass
class Tally:
    """Counts of a pool, for the report of a simulation."""

    kills: int = 0  # jobs whose machine was taken away; a cancelled job does not count
    graceful: int = 0  # jobs in `kills` that had a warning
    crashes: int = 0  # processes that ended by themselves with an exit status other than 0
    lived_s: float = 0.0  # sum of the running times of all jobs that have ended


@dataclass(frozen=True)
class Negotiation:
    """The negotiation cycle of a pool: jobs are matched with machines only at regular instants."""

    every_s: float  # seconds between two cycles
    most: int  # maximum number of jobs of one run that are matched in one cycle

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s > 0):
            raise UsageError(f"a pool matches jobs every {self.every_s} s; expected a number of seconds above 0.")
        if self.most < 1:
            raise UsageError(f"a pool matches {self.most} jobs at a time; expected at least 1.")


@final
class SimulatedPool:
    """Machines, and the jobs on them.

    A job waits in the queue for at least `wait_s`, and then for the next `negotiation` cycle, if the pool has one.
    `hire` starts the job's process.
    """

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
        self._negotiates_s: float | None = None  # time of the next planned cycle
        self._script = script
        self._hire = hire
        self._wait_s = wait_s
        self._start_s = clock.now_s
        self._names: set[str] = set()  # names of all jobs so far; a name must not be used twice in a run
        # The jobs in `_queued` wait. `_queue` keeps their order; it contains cancelled jobs until they reach its head.
        self._queue: deque[tuple[str, float]] = deque()  # (worker, earliest start)
        self._queued: set[str] = set()
        self._jobs: dict[str, _Job] = {}  # running ones, by worker
        self._hosted = [0] * script.slots  # by slot: number of jobs that it has run = number of its next life
        # A slot that runs no job is in exactly one of `_free` and `_resting`, and its next life is in `_offers`. A slot
        # for which the script has no further life is in none of the three.
        self._free: list[tuple[float, int]] = []  # a heap of (time at which it opens, slot)
        self._resting: list[tuple[float, int]] = []  # the same for slots that are free, but avoided
        self._offers: dict[int, PlannedLife] = {}  # by slot
        self._avoided: frozenset[str] = frozenset()
        self._events: list[JobEvent] = []
        self.tally = Tally()
        for slot in range(script.slots):
            self._offer(slot, 0.0)

    # --- requests of the master

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
            self._request_end(job, grace_s, cancelled=True)
        elif worker in self._queued:
            self._queued.discard(worker)
            self._events.append(
                JobEvent(self._clock.now_s, worker, State.EVICTED, detail="cancelled while queued", cancelled=True)
            )

    def avoid(self, machines: Collection[str]) -> None:
        """Start no worker on these machines. Replaces the machines of the last call."""
        self._avoided = frozenset(machines)
        for free in self._resting:
            heapq.heappush(self._free, free)
        self._resting = []
        self._plan_match(self._clock.now_s)

    def living(self) -> list[str]:
        """Return the running workers, then the queued ones."""
        return [*self._jobs, *(name for name, _ in self._queue if name in self._queued)]

    def report_again(self) -> None:
        """Replace the pending events by the present state of every job, for a master that inherits the pool."""
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
        """Offer a machine again, after a job or after a life without a job."""
        free_s = self._clock.now_s - self._start_s
        if life.closes_s is not None and self._start_s + life.closes_s <= self._clock.now_s:
            free_s = max(free_s, life.closes_s)  # so that rounding does not offer the end of the same life forever
        self._offer(slot, free_s)

    def _offer(self, slot: int, free_s: float) -> None:
        life = self._script.life(slot, self._hosted[slot], free_s)
        if life is not None:
            self._offers[slot] = life
            heapq.heappush(self._free, (life.opens_s, slot))
            self._plan_match(self._start_s + life.opens_s)

    def _plan_match(self, at_s: float) -> None:
        """Plan a match at `at_s`, or in the first negotiation cycle at or after `at_s`."""
        if self._negotiation is None:
            self._clock.at(at_s, self._match)
            return
        at_s = self._start_s + self._negotiation.every_s * math.ceil((at_s - self._start_s) / self._negotiation.every_s)
        if self._negotiates_s is None or at_s < self._negotiates_s:
            self._negotiates_s = at_s
            self._clock.at(at_s, lambda: self._negotiate(at_s))

    def _negotiate(self, at_s: float) -> None:
        """Match up to `Negotiation.most` jobs, and plan the next cycle if jobs and machines are left."""
        if self._negotiation is None or self._negotiates_s != at_s:
            return  # superseded: after this cycle, an earlier one was planned
        self._negotiates_s = None
        self._match(self._negotiation.most)
        if self._queue and self._free:
            self._plan_match(at_s + self._negotiation.every_s)

    def _match(self, most: float = math.inf) -> None:
        """Start up to `most` jobs that have waited long enough, on free machines."""
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
            if life.closes_s is not None and self._start_s + life.closes_s <= now:  # the machine has left again
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
            self._clock.at(self._start_s + ends_s, lambda: self._take_away(job))
        self._clock.at(now, lambda: self._step(job, 0))

    def _take_away(self, job: _Job) -> None:
        """Take the machine away from a job."""
        if not job.ended and not job.ending:
            grace_s = job.life.grace_s if job.life.graceful else 0.0
            self.tally.kills += 1
            self.tally.graceful += grace_s > 0
            self._request_end(job, grace_s, cancelled=False)

    def _request_end(self, job: _Job, grace_s: float, *, cancelled: bool) -> None:
        """Send SIGTERM and, `grace_s` later, SIGKILL. If `grace_s` is 0, send SIGKILL immediately. A later request can
        only bring the SIGKILL forward."""
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
        if not job.ended and job.process.is_interruptible:
            job.process.is_interruptible = False
            self._plan(job, 0.0)

    def _plan(self, job: _Job, seconds: float) -> None:
        job.wake += 1
        wake = job.wake
        self._clock.at(self._clock.now_s + seconds, lambda: self._step(job, wake))

    def _step(self, job: _Job, wake: int) -> None:
        """Run a worker until its next wait."""
        if job.ended or wake != job.wake:
            return
        try:
            seconds = next(job.steps)
            while seconds <= 0:
                seconds = next(job.steps)
        except StopIteration:
            self._handle_exit(job, 0, "exit status 0")
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
            self._handle_exit(job, code, f"exit status {code}")
        except AssertionError:
            raise
        except Exception as error:
            self._handle_exit(job, 1, f"exit status 1: {type(error).__name__}: {error}")
        else:
            self._plan(job, seconds)

    def _handle_exit(self, job: _Job, code: int, how: str) -> None:
        """Handle a process that ended by itself. If its end had been requested, the job counts as evicted."""
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
        job.steps = iter(())  # frees the process: planned actions still refer to the job
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
    """One master's connection to a pool.

    `crashed()` is true once the master was killed; `close` then cancels no job. `reached` is called before each
    submission, so that the master can be killed at that point.
    """

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
