"""The contract of a back end: it starts worker processes, reports what became of each, and ends them when asked.

It knows nothing of chunks, leases or replicas: those go through a carrier. Foreign states are translated into
`State` by one table per back end and never folded into each other: a held job is not a failed one, an evicted one
is not a finished one. The contract as checks is `master.backends.contract`.

A job that was put on hold is released again, replaced, or left to a person, or the run stops: `after_hold` decides.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Self

from gridml import dataclass_json

MAX_HELD = 3  # jobs on hold before any worker has spoken
MAX_RELEASES = 3  # of one job, where what held it may pass; then another takes its place
MAX_RAISES = 10  # of what one job asks for: it doubles each time
RELEASE_S = 15.0  # before the first of them, four times as long before each further one
MAX_ROUNDS = 3  # holds for each worker that is asked for, with nothing credited in between
FEWEST_HOLDS = 10  # so many are borne in any case


class HeldFor(StrEnum):
    """Why a job is on hold, as far as it matters for what is done about it."""

    PERSON = "a person"  # somebody wants it so
    POLICY = "a policy"  # it ran too long, or began too often: released, it would be held again; a new job is not
    MEMORY = "memory"  # it needs more, and the next attempt asks for more
    TROUBLE = "trouble"  # of its machine or its network: it may pass
    ITSELF = "itself"  # what it asks for or brings with it: every job of the run is like it


class Remedy(Enum):
    """What is done about a hold."""

    RELEASE = auto()
    REPLACE = auto()
    WAIT = auto()  # for a person
    STOP = auto()  # the run, which a person can resume


@dataclass(frozen=True)
class Hold:
    """A job on hold `because` of something, `released` so often before. `fruitless` jobs were held, by no person, since
    something was credited, this one among them; `held` are on hold, `alive` others are queued or run, of `asked`
    workers. `spoken`: some worker of the run has once."""

    because: HeldFor
    reason: str
    released: int = 0
    fruitless: int = 1
    held: int = 1
    alive: int = 0
    asked: int = 1
    spoken: bool = True


def after_hold(hold: Hold) -> tuple[Remedy, float, str]:
    """Return what to do, after how many seconds, and why.

    However the pool holds jobs, each remedy is bounded: by `MAX_RELEASES` of a job, and for the run by `MAX_ROUNDS` of
    all its workers without a credit. What only a person can mend waits while others are at work.
    """
    on_hold = f"{hold.held} jobs are on hold"
    if hold.because is HeldFor.MEMORY and hold.released < MAX_RAISES:
        return Remedy.RELEASE, 0.0, "it asks for more memory"
    if not hold.spoken and (hold.held >= MAX_HELD or not hold.alive):
        return Remedy.STOP, 0.0, f"{hold.held} jobs were put on hold and none has ever run: {hold.reason}"
    if hold.because is HeldFor.PERSON:
        return Remedy.WAIT, 0.0, f"{on_hold}; this one waits for whoever put it there"
    bound = max(FEWEST_HOLDS, MAX_ROUNDS * hold.asked)
    if hold.fruitless > bound:
        return Remedy.STOP, 0.0, f"jobs were put on hold {hold.fruitless} times with nothing credited: {hold.reason}"
    if hold.because is HeldFor.ITSELF:
        if not hold.alive:
            return Remedy.STOP, 0.0, f"all jobs are on hold, and others would be, too: {hold.reason}"
        return Remedy.WAIT, 0.0, f"{on_hold}; another job would be held, too"
    if hold.because is HeldFor.TROUBLE and hold.released < MAX_RELEASES:
        pause_s = RELEASE_S * 4.0**hold.released
        return Remedy.RELEASE, pause_s, f"what held it may pass: released in {pause_s:.0f} s"
    if hold.because in (HeldFor.TROUBLE, HeldFor.MEMORY):
        return Remedy.REPLACE, 0.0, f"it was released {hold.released} times: another job takes its place"
    return Remedy.REPLACE, 0.0, "released it would be held again: another job takes its place"


_SIGNALS = {number.value: number.name for number in signal.Signals}  # real-time signals have a number only


class State(StrEnum):
    """What a job is doing. QUEUED, RUNNING, OUT_OF_REACH, SUSPENDED and HELD are alive; EVICTED, FINISHED and LOST are
    ends."""

    QUEUED = "queued"  # accepted, waiting for a machine
    RUNNING = "running"  # the worker process started on a machine, or is in reach again
    OUT_OF_REACH = "out of reach"  # nobody can tell whether it runs on
    SUSPENDED = "suspended"  # stands still on its machine until that lets it go on
    HELD = "held"  # is not started before it is released
    EVICTED = "evicted"  # the machine was taken away, with grace (SIGTERM first) or without
    FINISHED = "finished"  # the worker left by itself with status 0
    LOST = "lost"  # it ended in a way nobody asked for: a crash, a non-zero status, silence

    @property
    def ended(self) -> bool:
        return self in (State.EVICTED, State.FINISHED, State.LOST)


def in_words(code: int) -> str:
    """Return an exit status, or minus the signal that ended a process, in words."""
    return f"signal {_SIGNALS.get(-code, -code)}" if code < 0 else f"exit status {code}"


@dataclass(frozen=True)
class JobEvent:
    """One change of one job's state.

    `time_s` is seconds on the back end's clock; `machine` names the place ("slot-2", or "slot1@host" where a host has
    several), so that the lives of one place can be counted; `graceful` says for EVICTED whether SIGTERM came first,
    None where the back end cannot know: then it was if the worker took its leave; `detail` is for people.
    `cancelled` says for EVICTED that the master asked for the end, so that nobody counts it as a kill;
    `removed` says for EVICTED that a rule of the batch system ended the job for good, and no person did.
    `next_attempt` is the worker as which the back end starts it again by itself; `held_for` says for HELD why.
    """

    time_s: float
    worker: str
    state: State
    machine: str = ""
    detail: str = ""
    graceful: bool | None = False
    exit_code: int | None = None
    pid: int | None = None
    cancelled: bool = False
    removed: bool = False
    next_attempt: str = ""
    held_for: HeldFor = HeldFor.PERSON

    @property
    def host(self) -> str:
        """What breaks as a whole: the host of the place, or the place."""
        return self.machine.rpartition("@")[2]


@dataclass(frozen=True)
class BackendFacts:
    """What the rest of gridml must know of a back end, and all it may ask.

    `chunks_per_job`: a job leaves after so many chunks, 0: it stays while its machine lasts. `max_idle`: how many jobs
    may wait in the queue, None: any number. `carries_files`: files of the run directory go with each job, and the
    outbox of a job comes home when it ends. `carriers`: how messages can travel there, the usual way first; where
    files are carried, so can every carrier that works anywhere. `workers_option`: what the number of workers is called
    on the command line.
    """

    chunks_per_job: int = 0
    max_idle: int | None = None
    carries_files: bool = False
    carriers: tuple[str, ...] = ("directory",)
    workers_option: str = "--workers"


@dataclass(frozen=True)
class BackendOptions:
    """The options of one back end. Subclasses are frozen dataclasses with plain fields, each with a default; a field
    that is made by `option` (master/state/options.py) is an option of the back end's command, and of its call.

    Raises UsageError for what makes no sense. As it is, the class stands for "nothing but defaults".
    """

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts()

    @classmethod
    def among(cls, options: BackendOptions) -> Self:
        """Return `options` as this back end's own; those that were left at their defaults are made."""
        return options if isinstance(options, cls) else cls()

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.to_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return dataclass_json.from_json(cls, values)


class Backend(ABC):
    """Starts and ends workers. Not thread-safe: the master's loop owns it."""

    name: str

    def inherit(self, *, keep: bool) -> list[str]:
        """Workers that an earlier master of the run left behind, queued or running; asked once, before anything else.

        With `keep` they live on, and `poll` tells of them beginning with the state they are in. Otherwise they are
        ended and nobody hears of them.
        """
        return []

    @abstractmethod
    def submit(self, worker: str) -> None:
        """Ask for one worker under a name that is new in the run. Returns at once; QUEUED is its first event."""

    @abstractmethod
    def poll(self) -> list[JobEvent]:
        """Events since the last call, in order; never blocks.

        Each worker has at most one RUNNING, but for those after OUT_OF_REACH and SUSPENDED, and one ended. A back end
        that starts an evicted job again by itself does so under a new name, of which QUEUED is the first event.
        """

    @abstractmethod
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """End a job: SIGTERM and, after `grace_s`, SIGKILL. A name that is unknown or has ended is ignored."""

    def release(self, worker: str) -> None:  # noqa: B027
        """Let a job that is HELD go on; QUEUED is its next event. Any other name is ignored."""

    @property
    def max_run_s(self) -> float | None:
        """Seconds that a worker may run before the back end ends or holds it, None: as long as its machine lasts."""
        return None

    @property
    def max_workers(self) -> int | None:
        """How many workers there may be for what a run may cost, None: as many as are wanted. Those that are too many
        are told to leave."""
        return None

    def scale(self, workers: int) -> None:  # noqa: B027
        """Have places for so many workers, where a back end makes them itself. Who is there stays."""

    def avoid(self, machines: Collection[str]) -> None:  # noqa: B027
        """Start no workers on these machines (`JobEvent.host`), and on no others but these, until this is called again;
        where that can be asked for. Who runs there runs on."""

    def notices(self) -> list[str]:
        """What a person should hear since the last call, and no event says."""
        return []

    def exhausted(self) -> str | None:
        """Return why no job that waits will ever start, None while one may."""
        return None

    def more_machines(self, resume: str) -> str:
        """What a person can do when it is `exhausted`; `resume` is what goes on with the run."""
        return f"Mend that, then go on: {resume}"

    def advice(self, detail: str) -> str:
        """What a person can do about the reason `detail` for which a job is held, "" where nothing is known."""
        return ""

    @property
    def release_command(self) -> str:
        """What a person types to let the run's held jobs go on, "" where there is nothing."""
        return ""

    def leave(self) -> None:
        """Let go of the workers so that a later master inherits them; a back end whose workers cannot go on without
        their master ends them. Nothing may be asked afterwards. Idempotent."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End every job and wait for their processes; afterwards none is left. Idempotent."""
