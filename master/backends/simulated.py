"""The simulated back end: the machines of a script under a virtual clock, and workers that are stepped.

The pool outlives every master, as a real one does: its workers train on while no master is there, and the next one
inherits them. Everything in it happens at planned instants of one clock, in the order of the planning, so the same
seed gives the same run.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, final

from master.backends.base import Backend, JobEvent, State
from master.backends.script import PlannedLife, Script
from master.simulation.clock import VirtualClock


class Player(Protocol):
    """A worker process of a simulation."""

    interruptible: bool
    woken: Callable[[], None]

    def life(self) -> Iterator[float]:
        """Everything it does; yields the seconds to wait before it goes on, and ends when the process does."""

    def evict(self) -> None:
        """Its machine asks it to leave."""


Hire = Callable[[str, int], Player]  # (worker, slot): starts its process


@dataclass
class _Job:
    worker: str
    slot: int
    life: PlannedLife
    began_s: float
    player: Player
    steps: Iterator[float]
    wake: int = 0  # only the newest planned wake counts
    evicted: bool = False
    ended: bool = False


@dataclass
class Tally:
    """What happened to machines, for the report of a simulation."""

    kills: int = 0
    graceful: int = 0
    lived_s: float = 0.0


@final
class Pool:
    """Machines and workers. `hire` starts a worker's process; a job waits `wait_s` in the queue at least."""

    def __init__(self, clock: VirtualClock, script: Script, hire: Hire, *, wait_s: float = 0.0) -> None:
        self._clock = clock
        self._script = script
        self._hire = hire
        self._wait_s = wait_s
        self._start_s = clock.now_s
        self._queue: deque[tuple[str, float]] = deque()  # (worker, when it may start)
        self._withdrawn: set[str] = set()
        self._jobs: dict[str, _Job] = {}
        self._hosted = [0] * script.slots
        self._free: list[tuple[float, int]] = []  # (when it opens, slot)
        self._offers: dict[int, PlannedLife] = {}
        self._events: list[JobEvent] = []
        self.tally = Tally()
        for slot in range(script.slots):
            self._offer(slot, 0.0)

    # --- what a master asks

    def submit(self, worker: str) -> None:
        self._queue.append((worker, self._clock.now_s + self._wait_s))
        self._tell(worker, State.QUEUED)
        self._clock.at(self._clock.now_s + self._wait_s, self._match)

    def poll(self) -> list[JobEvent]:
        events, self._events = self._events, []
        return events

    def cancel(self, worker: str) -> None:
        job = self._jobs.get(worker)
        if job is not None:
            self._end(job, State.EVICTED, "cancelled", cancelled=True)
        elif any(name == worker for name, _ in self._queue) and worker not in self._withdrawn:
            self._withdrawn.add(worker)
            self._tell(worker, State.EVICTED, detail="cancelled while queued", cancelled=True)

    def living(self) -> list[str]:
        return [*self._jobs, *(name for name, _ in self._queue if name not in self._withdrawn)]

    def tell_again(self) -> None:
        """For a master that inherits: the state that everybody is in."""
        self._events = []
        for job in self._jobs.values():
            self._tell(job.worker, State.RUNNING, self._script.machine(job.slot))

    def cancel_all(self) -> None:
        for worker in self.living():
            self.cancel(worker)

    # --- machines

    def _offer(self, slot: int, free_s: float) -> None:
        life = self._script.life(slot, self._hosted[slot], free_s)
        if life is not None:
            self._offers[slot] = life
            heapq.heappush(self._free, (life.opens_s, slot))
            self._clock.at(self._start_s + life.opens_s, self._match)

    def _match(self) -> None:
        """Give free machines to jobs that have waited long enough."""
        now = self._clock.now_s
        while self._queue and self._free:
            worker, ready_s = self._queue[0]
            if worker in self._withdrawn:
                self._withdrawn.discard(worker)
                self._queue.popleft()
                continue
            opens_s, slot = self._free[0]
            if ready_s > now or self._start_s + opens_s > now:
                return
            heapq.heappop(self._free)
            life = self._offers.pop(slot)
            if life.closes_s is not None and self._start_s + life.closes_s <= now:  # it came and went
                self._offer(slot, now - self._start_s)
                continue
            self._queue.popleft()
            self._start(worker, slot, life)

    def _start(self, worker: str, slot: int, life: PlannedLife) -> None:
        self._hosted[slot] += 1
        now = self._clock.now_s
        player = self._hire(worker, slot)
        job = _Job(worker, slot, life, now, player, player.life())
        player.woken = lambda: self._woken(job)
        self._jobs[worker] = job
        self._tell(worker, State.RUNNING, self._script.machine(slot))
        ends_s = life.ends_s(now - self._start_s)
        if ends_s is not None:
            self._clock.at(self._start_s + ends_s, lambda: self._take(job))
        self._clock.at(now, lambda: self._step(job, 0))

    def _take(self, job: _Job) -> None:
        """The machine is taken away: SIGTERM and, after the grace, SIGKILL; or SIGKILL at once."""
        if job.ended:
            return
        self.tally.kills += 1
        if not job.life.graceful:
            self._end(job, State.EVICTED, "SIGKILL")
            return
        self.tally.graceful += 1
        job.evicted = True
        self._clock.at(self._clock.now_s + job.life.grace_s, lambda: self._end(job, State.EVICTED, "SIGTERM, SIGKILL"))
        job.player.evict()

    def _woken(self, job: _Job) -> None:
        if not job.ended and job.player.interruptible:
            job.player.interruptible = False
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
            state = State.EVICTED if job.evicted else State.FINISHED
            self._end(job, state, "SIGTERM, left" if job.evicted else "left")
            return
        self._plan(job, seconds)

    def _end(self, job: _Job, state: State, detail: str, *, cancelled: bool = False) -> None:
        if job.ended:
            return
        job.ended = True
        job.player.woken = lambda: None
        del self._jobs[job.worker]
        now = self._clock.now_s
        self.tally.lived_s += now - job.began_s
        graceful = job.evicted and not cancelled
        self._tell(
            job.worker, state, self._script.machine(job.slot), detail=detail, graceful=graceful, cancelled=cancelled
        )
        self._offer(job.slot, now - self._start_s)

    def _tell(
        self,
        worker: str,
        state: State,
        machine: str = "",
        *,
        detail: str = "",
        graceful: bool = False,
        cancelled: bool = False,
    ) -> None:
        self._events.append(JobEvent(self._clock.now_s, worker, state, machine, detail, graceful, cancelled=cancelled))


@final
class Simulated(Backend):
    """One master's hold on a pool. `crashed()` says whether the master was killed: then nobody cancels anything."""

    name = "simulated"

    def __init__(self, pool: Pool, crashed: Callable[[], bool] = lambda: False) -> None:
        self._pool = pool
        self._crashed = crashed
        self._closed = False

    def inherit(self, *, keep: bool) -> list[str]:
        living = self._pool.living()
        if not keep:
            self._pool.cancel_all()
            self._pool.poll()
            return []
        self._pool.tell_again()
        return living

    def submit(self, worker: str) -> None:
        self._pool.submit(worker)

    def poll(self) -> list[JobEvent]:
        return self._pool.poll()

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        self._pool.cancel(worker)

    def leave(self) -> None:
        self._closed = True

    def close(self) -> None:
        if not self._closed and not self._crashed():
            self._pool.cancel_all()
        self._closed = True
