"""The local back end: workers as processes of this machine, killed by a script, for demonstrations and tests.

Every worker leads a session of its own: Ctrl-C at the master's terminal does not reach it, and its children can be
killed with it. SIGTERM goes to the worker alone, which has a push to finish; SIGKILL goes to its whole process group,
as when a machine is taken away. Signals are sent only to processes not yet waited for, whose pids cannot be reused.

Workers call `gridml.engine.parent.die_with_parent`. The kernel then kills a worker when the thread that forked it ends,
so `poll` must be called from a thread that lives as long as the master.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridml.engine.devices import SLOT
from gridml.errors import RunError, StorageError, UsageError
from master.backends.script import PlannedLife, Script
from master.state.jobs import Backend, JobEvent, State, in_words

_REAP_S = 0.01  # from SIGKILL to the next poll; processes end sooner
MAX_LOAD = 2.0  # processes per core, above which the machine counts as overloaded
_STOPS = os.WSTOPPED | os.WCONTINUED | os.WNOHANG


@dataclass(frozen=True)
class Ending:
    """The planned end of a worker."""

    kill_s: float  # time of SIGKILL
    graceful: bool  # SIGTERM was sent first
    cancelled: bool = False  # by the master, not by the script


@dataclass
class _Slot:
    """A slot of the script, which holds one worker at a time."""

    number: int
    life: PlannedLife | None  # planned life of its next worker; None if the slot never opens again
    hosted: int = 0  # number of its workers so far, including the current one
    taken: bool = False  # a worker runs in it


@dataclass
class _Job:
    """A running worker; times are on the script's clock."""

    worker: str
    slot: _Slot
    life: PlannedLife
    process: subprocess.Popen[bytes]
    began_s: float
    ends_s: float | None
    ending: Ending | None = None
    killed: bool = False  # SIGKILL was sent
    stopped: bool = False  # by SIGSTOP or the like, as last reported


def classify(code: int, ending: Ending | None) -> tuple[State, bool, str]:
    """Return the state of an ended worker, whether the end was graceful, and the reason.

    `code` is the exit status, or minus the signal that ended the process.
    """
    how = in_words(code)
    # After SIGTERM any end is an eviction. A worker that was to get SIGKILL, but whose end shows no SIGKILL, was faster
    # than the signal: it ended by itself.
    if ending is not None and ending.graceful:
        return State.EVICTED, True, "SIGTERM, then SIGKILL" if code == -signal.SIGKILL else f"SIGTERM, left with {how}"
    if ending is not None and code == -signal.SIGKILL:
        return State.EVICTED, False, "SIGKILL"
    return (State.FINISHED if code == 0 else State.LOST), False, how


def overload(load: float, cores: int) -> str:
    """Return the beginning of an advice, which says that the machine's load makes its workers slow, or "".

    `load` is the mean number of processes that run or wait for one of the machine's `cores`.
    """
    if load <= MAX_LOAD * cores:
        return ""
    return f"This machine has {cores} cores and a load of {load:.0f}, which makes workers slow: end other programs. "


class Local(Backend):
    """One process per submitted worker while the script has an open slot; the others stay queued.

    `command` returns the argument list for a worker's name. stdout and stderr of a worker go to `logs`/<worker>.log.
    Workers compute with `threads` threads, so that several share a machine fairly. With `from_message` the duration of
    a planned life counts from the worker's first message: starting a process takes real time, which no script can speed
    up. `clock` gives the seconds in events. The script's clock starts with the back end. Raises StorageError if the log
    folder cannot be created.
    """

    name = "local"

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        script: Script,
        logs: Path,
        *,
        threads: int = 1,
        from_message: bool = False,
        clock: Callable[[], float] = time.monotonic,
        close_grace_s: float = 2.0,
    ) -> None:
        if threads < 1:
            raise UsageError(f"a worker was given {threads} threads, expected 1 or more")
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the folder of the logs, {logs}: {error.strerror}; free or choose another"
            ) from error
        self._command = command
        self._script = script
        self._logs = logs
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
        self._clock = clock
        self._start_s = clock()
        self._close_grace_s = close_grace_s
        self._from_message = from_message
        self._slots = [_Slot(number, script.life(number, 0)) for number in range(script.slots)]
        self._queue: deque[str] = deque()  # workers without a slot, in order of submission
        self._jobs: dict[str, _Job] = {}  # running workers, by name; each in a slot of its own
        self._submitted: set[str] = set()  # every name ever used
        self._events: list[JobEvent] = []  # for the next `poll`
        self._closed = False
        self._avoided: frozenset[str] = frozenset()  # machines that get no worker

    def submit(self, worker: str) -> None:
        """Raises UsageError for a name that was used before or that cannot name a log file, RunError after `close`."""
        if self._closed:
            raise RunError(f"worker {worker} was submitted to a local pool that is closed: start a new one")
        if worker in self._submitted or not worker or "/" in worker:
            raise UsageError(f"got the worker name {worker!r}, expected one that is new in this run and has no slash")
        self._submitted.add(worker)
        self._queue.append(worker)
        self._record(worker, State.QUEUED)

    def poll(self) -> list[JobEvent]:
        now = self._now()
        # Ends come first: a worker that left by itself does not count as killed, and its slot is free at once.
        self._reap(now)
        for job in self._jobs.values():
            self._check_stopped(job)
            if job.ending is None and job.ends_s is not None and job.ends_s <= now:
                self._end(job, now, job.life.grace_s if job.life.graceful else 0.0)
            elif job.ending is not None and job.ending.kill_s <= now:
                self._kill(job)
        self._start(now)
        events, self._events = self._events, []
        return events

    def _check_stopped(self, job: _Job) -> None:
        """Report a worker that a signal has stopped or continued since the last poll."""
        machine = self._script.machine(job.slot.number)
        with contextlib.suppress(ChildProcessError):  # the worker has ended since `_reap`; the next `_reap` reports it
            while (changed := os.waitid(os.P_PID, job.process.pid, _STOPS)) is not None:
                stopped = changed.si_code == os.CLD_STOPPED
                if stopped != job.stopped:
                    job.stopped = stopped
                    state, detail = (State.SUSPENDED, "stopped") if stopped else (State.RUNNING, "goes on")
                    self._record(job.worker, state, machine, detail, pid=job.process.pid)

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """As in the contract. Without grace the worker gets SIGKILL at once."""
        now = self._now()
        if worker in self._queue:
            self._queue.remove(worker)
            self._record(worker, State.EVICTED, detail="cancelled while queued", cancelled=True)
        elif (job := self._jobs.get(worker)) is not None:
            if job.ending is None:
                self._end(job, now, grace_s, cancelled=True)
            elif now + grace_s < job.ending.kill_s:
                # The script stays the cause of the end; the master may only shorten the grace.
                job.ending = replace(job.ending, kill_s=now + grace_s)

    def scale(self, workers: int) -> None:
        """As in the contract. A trace has a fixed number of machines."""
        self._script = self._script.grown(workers)
        more = range(len(self._slots), self._script.slots)
        self._slots += [_Slot(number, self._script.life(number, 0, self._now())) for number in more]

    def avoid(self, machines: Collection[str]) -> None:
        """As in the contract. The slots of these machines stay empty."""
        self._avoided = frozenset(machines)

    def reported(self, worker: str) -> None:
        """As in the contract. Begin a life that counts from the first message."""
        if self._from_message and (job := self._jobs.get(worker)) is not None:
            job.ends_s = job.life.ends_s(self._now())

    @property
    def longer_lives(self) -> str:
        slower = overload(os.getloadavg()[0], os.cpu_count() or 1)
        return f"{slower}Give a smaller --speedup, a longer --lifetime, or fewer --workers"

    def close(self) -> None:
        """Cancel every job with `close_grace_s` of real time, and wait for the ends; `poll` still reports them."""
        self._closed = True
        for worker in [*self._queue, *self._jobs]:
            self.cancel(worker, grace_s=self._close_grace_s)
        deadline = time.monotonic() + self._close_grace_s
        while self._jobs:
            if time.monotonic() >= deadline:
                for job in self._jobs.values():
                    self._kill(job)
            self._reap(self._now())
            if self._jobs:
                time.sleep(_REAP_S)

    def exhausted(self) -> str | None:
        """As in the contract: a script ends when all its machines are gone. Avoided machines are not gone."""
        now = self._now()
        if not self._queue or self._jobs or self._events or any(self._open_slots(now)):
            return None
        return f"all {len(self._slots)} machines of the script are gone after {now:.0f} s, and none comes again"

    def more_machines(self, resume: str) -> str:
        return f"Begin again with a longer trace, or play their times from the beginning: {resume}"

    def _record(self, worker: str, state: State, machine: str = "", detail: str = "", **facts: Any) -> None:
        self._events.append(JobEvent(self._clock(), worker, state, machine, detail, **facts))

    def _now(self) -> float:
        return self._clock() - self._start_s

    def _open_slots(self, now: float) -> Iterator[tuple[_Slot, PlannedLife]]:
        """Yield the free slots and their next lives, which begin now or later."""
        for slot in self._slots:
            if slot.taken or slot.life is None:
                continue
            if slot.life.closes_s is not None and slot.life.closes_s <= now:  # this life passed without a worker
                slot.life = self._script.life(slot.number, slot.hosted, now)
            if slot.life is not None:
                yield slot, slot.life

    def _is_avoided(self, slot: _Slot) -> bool:
        return self._script.machine(slot.number) in self._avoided

    def _start(self, now: float) -> None:
        if not self._queue:
            return
        for slot, life in self._open_slots(now):
            if life.opens_s <= now and self._queue and not self._is_avoided(slot):
                self._launch(self._queue.popleft(), slot, life, now)

    def _launch(self, worker: str, slot: _Slot, life: PlannedLife, now: float) -> None:
        machine = self._script.machine(slot.number)
        try:
            with open(self._logs / f"{worker}.log", "ab") as log:
                process = subprocess.Popen(
                    list(self._command(worker)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**self._environment, SLOT: str(slot.number)},
                    start_new_session=True,
                )
        except OSError as error:
            self._record(worker, State.LOST, machine, f"could not be started: {error}")
            return
        slot.taken = True
        slot.hosted += 1
        from_message = self._from_message and life.duration_s is not None
        until_message = replace(life, duration_s=None) if from_message else life
        job = _Job(worker, slot, life, process, now, until_message.ends_s(now))
        self._jobs[worker] = job
        first = "SIGTERM" if life.graceful else "SIGKILL"
        plan = "no end" if job.ends_s is None else f"{first} after {job.ends_s - now:.1f} s"
        if from_message:
            plan = f"{first} {life.duration_s:.1f} s after its first message"
        detail = f"life {slot.hosted} of {machine}, planned: {plan}"
        self._record(worker, State.RUNNING, machine, detail, pid=process.pid)

    def _end(self, job: _Job, now: float, grace_s: float, *, cancelled: bool = False) -> None:
        """Signal a worker to end. If it has ended already, do nothing: the next `_reap` reports how it ended."""
        if _has_ended(job.process):
            return
        job.ending = Ending(now + grace_s, graceful=grace_s > 0, cancelled=cancelled)
        if job.ending.graceful:
            job.process.send_signal(signal.SIGTERM)
        else:
            self._kill(job)

    def _kill(self, job: _Job) -> None:
        if not job.killed:
            job.killed = True
            _kill_session(job.process)

    def _reap(self, now: float) -> None:
        for job in [job for job in self._jobs.values() if _has_ended(job.process)]:
            # Kill its children before `wait`: until then the number of its process group cannot be reused.
            _kill_session(job.process)
            self._ended(job, job.process.wait(), now)

    def _ended(self, job: _Job, code: int, now: float) -> None:
        del self._jobs[job.worker]
        slot, machine = job.slot, self._script.machine(job.slot.number)
        slot.taken = False
        slot.life = self._script.life(slot.number, slot.hosted, now)
        state, graceful, why = classify(code, job.ending)
        detail = f"{why} after {now - job.began_s:.1f} s"
        cancelled = state is State.EVICTED and job.ending is not None and job.ending.cancelled
        if cancelled:
            detail += " (cancelled)"
        elif state is State.EVICTED:
            detail += f" (script: life {slot.hosted} of {machine})"
        elif state is State.LOST:
            detail += f"; see {job.worker}.log"
        facts = {"graceful": graceful, "exit_code": code, "pid": job.process.pid, "cancelled": cancelled}
        self._record(job.worker, state, machine, detail, **facts)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended, without reaping it, so that its pid is not reused."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a child that has not been waited for, and to its process group."""
    os.killpg(process.pid, signal.SIGKILL)
