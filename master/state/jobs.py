"""The contract of a back end: it starts worker processes, reports the states of their jobs, and ends them on request.

A back end knows nothing about chunks, leases or replicas, which travel through a carrier. Each back end has one table
that maps the batch system's job states to `State`. The table keeps states apart: a held job has not failed, and an
evicted job has not finished. `master.backends.contract` has the checks of this contract.

`after_hold` decides what to do about a job on hold: release it, replace it, wait for a person, or stop the run.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Self

from gridml import dataclass_json

MAX_HELD = 3  # the run stops when this many jobs are on hold and no worker has ever reported
MAX_RELEASES = 3  # releases of one job for a transient cause; at the next such hold the job is replaced
MAX_MEMORY_RAISES = 10  # releases of one job with a higher memory request; the back end doubles it each time
RELEASE_S = 15.0  # pause before the first release of a job; each further pause is four times as long
MAX_ROUNDS = 3  # the run stops after more holds without a credit than this number times its target of workers
MIN_HOLDS = 10  # but every run tolerates this many holds without a credit, so that a small run survives a bad machine


class HeldFor(StrEnum):
    """Cause of a job's hold, as far as it decides the remedy."""

    PERSON = "a person"  # a person put the job on hold: it is never released automatically
    POLICY = "a policy"  # the job ran too long or started too often: a policy would hold it again, but not a new job
    MEMORY = "memory"  # the job exceeded its memory request; its next attempt requests more memory
    TRANSIENT = "trouble"  # a fault of its machine or its network, which may pass
    JOB = "itself"  # something that the job requests or brings with it, so every job of the run would be held


class Remedy(Enum):
    """Action on a hold."""

    RELEASE = auto()
    REPLACE = auto()
    WAIT = auto()  # wait until a person acts
    STOP = auto()  # stop the run; a person can resume it


@dataclass(frozen=True)
class Hold:
    """Input of `after_hold`: a job on hold, and the state of the run's other jobs."""

    because: HeldFor
    reason: str
    released: int = 0  #: earlier releases of this job
    #: holds since the last credit, this one included; holds by a person do not count
    without_credit: int = 1
    held: int = 1  #: jobs on hold now
    alive: int = 0  #: other jobs that are queued, run or are suspended
    target: int = 1  #: workers that the run tries to keep
    any_reported: bool = True  #: some worker of the run has at some time sent a valid message


def after_hold(hold: Hold) -> tuple[Remedy, float, str]:
    """Return the remedy for a hold, the pause in seconds before it, and the reason.

    A pool that holds jobs again and again cannot keep a run in this state forever: `MAX_RELEASES` bounds the releases
    of a job, and `MAX_ROUNDS` bounds the holds of a run without a credit. A job that only a person can release waits
    while other jobs are at work.
    """
    on_hold = f"{hold.held} jobs are on hold"
    # Memory is checked first. Its hold says nothing about the pool, only that the request was too small, so the remedy
    # needs no pause.
    if hold.because is HeldFor.MEMORY and hold.released < MAX_MEMORY_RAISES:
        return Remedy.RELEASE, 0.0, "it asks for more memory"
    # Before any worker has reported, the cause of a hold is most likely an error of the set-up, which affects all jobs.
    if not hold.any_reported and (hold.held >= MAX_HELD or not hold.alive):
        return Remedy.STOP, 0.0, f"{hold.held} jobs were put on hold and none has ever run: {hold.reason}"
    if hold.because is HeldFor.PERSON:
        return Remedy.WAIT, 0.0, f"{on_hold}; this one waits for the person who put it on hold"
    if (holds := hold.without_credit) > max(MIN_HOLDS, MAX_ROUNDS * hold.target):
        return Remedy.STOP, 0.0, f"jobs were put on hold {holds} times with nothing credited: {hold.reason}"
    if hold.because is HeldFor.JOB:
        if not hold.alive:
            return Remedy.STOP, 0.0, f"all jobs are on hold, and any other job would be, too: {hold.reason}"
        return Remedy.WAIT, 0.0, f"{on_hold}; another job would be held, too"
    if hold.because is HeldFor.TRANSIENT and hold.released < MAX_RELEASES:
        pause_s = RELEASE_S * 4.0**hold.released
        return Remedy.RELEASE, pause_s, f"its cause may pass: released in {pause_s:.0f} s"
    if hold.because in (HeldFor.TRANSIENT, HeldFor.MEMORY):
        return Remedy.REPLACE, 0.0, f"it was released {hold.released} times: another job takes its place"
    return Remedy.REPLACE, 0.0, "after a release it would be held again: another job takes its place"


_SIGNALS = {number.value: number.name for number in signal.Signals}  # real-time signals have no name


class State(StrEnum):
    """State of a job. QUEUED, RUNNING, OUT_OF_REACH, SUSPENDED and HELD are live states; EVICTED, FINISHED and LOST are
    final."""

    QUEUED = "queued"  # accepted, waiting for a machine
    RUNNING = "running"  # the worker process started on a machine, resumed, or can be reached again
    OUT_OF_REACH = "out of reach"  # the back end lost contact with the machine; perhaps the worker still runs
    SUSPENDED = "suspended"  # the machine stopped the process, and can resume it
    HELD = "held"  # on hold: the job does not start until it is released
    EVICTED = "evicted"  # the machine was taken away, with grace (SIGTERM first) or without
    FINISHED = "finished"  # the worker exited by itself with status 0
    LOST = "lost"  # the worker crashed, exited with another status, or gave no further sign of life

    @property
    def ended(self) -> bool:
        return self in (State.EVICTED, State.FINISHED, State.LOST)


def in_words(code: int) -> str:
    """Return a description of an exit status. A negative `code` is minus the number of the signal that ended the
    process."""
    return f"signal {_SIGNALS.get(-code, -code)}" if code < 0 else f"exit status {code}"


@dataclass(frozen=True)
class JobEvent:
    """A change of a job's state."""

    time_s: float  #: on the back end's clock
    worker: str
    state: State
    #: slot that runs the job, such as "slot-2", or "slot1@host" if a host has several; lifetimes are counted by slot
    machine: str = ""
    detail: str = ""  #: explanation for people
    #: EVICTED: whether SIGTERM came first. None: the back end cannot know, so a goodbye message of the worker decides
    graceful: bool | None = False
    exit_code: int | None = None
    pid: int | None = None
    cancelled: bool = False  #: EVICTED: the master requested it, so it does not count as a kill by the pool
    removed: bool = False  #: EVICTED: a rule of the batch system removed the job for good, not a person
    next_attempt: str = ""  #: worker name under which the back end itself restarts the job; "": it does not restart it
    held_for: HeldFor = HeldFor.PERSON  #: HELD: the cause

    @property
    def host(self) -> str:
        """The host of the slot, or the slot itself if no host is known. Failures are counted by host, because a host
        fails as a whole."""
        return self.machine.rpartition("@")[2]


@dataclass(frozen=True)
class BackendFacts:
    """Facts about a back end on which the rest of gridml depends. The rest of gridml never asks for a back end's
    name."""

    chunks_per_job: int = 0  #: a job exits after this many chunks; 0: it stays while its machine lasts
    max_idle: int | None = None  #: maximum number of jobs that wait in the queue; None: no limit
    #: the back end copies files of the run directory to each job, and the job's outbox back when the job ends
    carries_files: bool = False
    #: carriers that work with this back end, the default first; with `carries_files`, carriers that work on every back
    #: end are allowed, too
    carriers: tuple[str, ...] = ("directory",)
    workers_option: str = "--workers"  #: the command-line option for the number of workers


@dataclass(frozen=True)
class BackendOptions:
    """Base class for the options of one back end, and the options of a back end that has none.

    Subclasses are frozen dataclasses with plain fields, each with a default. A field that is made by `option`
    (master/state/options.py) is an option of the back end's command and call. Constructors raise UsageError for invalid
    values.
    """

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts()

    @classmethod
    def among(cls, options: BackendOptions) -> Self:
        """Return `options` if they are an instance of this class, otherwise the defaults of this class."""
        return options if isinstance(options, cls) else cls()

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.to_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return dataclass_json.from_json(cls, values)


class Backend(ABC):
    """Starts and ends workers. Not thread-safe: only the master's loop calls it."""

    name: str

    def inherit(self, *, keep: bool) -> list[str]:
        """Return the queued and running workers that an earlier master of the run left. Called once, before any other
        method.

        With `keep`, these workers continue, and `poll` reports them, beginning with their current state. Otherwise they
        are ended, and `poll` does not report them.
        """
        return []

    @abstractmethod
    def submit(self, worker: str) -> None:
        """Submit a job for a worker whose name is new in the run. Returns at once; QUEUED is its first event."""

    @abstractmethod
    def poll(self) -> list[JobEvent]:
        """Return the events since the last call, in order; never blocks.

        Each worker has at most one RUNNING event, except after OUT_OF_REACH and SUSPENDED, and one final event. A back
        end that restarts an evicted job by itself does so under a new name, whose first event is QUEUED.
        """

    @abstractmethod
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """End a job: SIGTERM and, after `grace_s`, SIGKILL. Unknown and ended workers are ignored."""

    def release(self, worker: str) -> None:  # noqa: B027
        """Release a HELD job; QUEUED is its next event. Jobs in other states are ignored."""

    @property
    def max_run_s(self) -> float | None:
        """Seconds after which the back end ends or holds a job; None: no limit."""
        return None

    @property
    def max_workers(self) -> int | None:
        """The number of workers that the run's budget allows; None: no limit. The fleet dismisses surplus workers."""
        return None

    def scale(self, workers: int) -> None:  # noqa: B027
        """Provide slots for this many workers, if the back end creates slots itself. Running workers stay."""

    def avoid(self, machines: Collection[str]) -> None:  # noqa: B027
        """Start no workers on these machines (`JobEvent.host`), if the back end can. Replaces the machines of the last
        call. Workers that run there continue."""

    def reported(self, worker: str) -> None:  # noqa: B027
        """Handle the first message of a worker. A back end that plans lives can let the worker's life begin here."""

    @property
    def longer_lives(self) -> str:
        """Advice for a run whose workers end before their first credit."""
        return "Ask for machines that last longer, or let a worker import and fetch less before it begins"

    def notices(self) -> list[str]:
        """Return new messages for the user that no event contains. Each message is returned once."""
        return []

    def exhausted(self) -> str | None:
        """Return the reason why no queued job can ever start; None while some job can still start."""
        return None

    def more_machines(self, resume: str) -> str:
        """Return advice for a back end that is `exhausted`; `resume` is the command that continues the run."""
        return f"Fix that, then go on: {resume}"

    def advice(self, detail: str) -> str:
        """Return advice on a hold with the reason `detail`; "" if there is no advice."""
        return ""

    @property
    def release_command(self) -> str:
        """The command with which a person releases the run's held jobs; "" if there is no such command."""
        return ""

    def leave(self) -> None:
        """Detach from the workers, so that a later master inherits them. If the workers of a back end cannot outlive
        their master, they are ended. No other method may be called afterwards. Idempotent."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End every job and wait until no process is left. Idempotent."""
