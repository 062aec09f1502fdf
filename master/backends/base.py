"""The contract of a back end: where workers come from and how their ends are told apart.

A back end starts worker processes somewhere, says what became of each, and ends them when asked. It knows nothing of
chunks, leases or replicas: those go through a carrier. Foreign states are translated into `State` by one table per
back end and never folded into each other: a held job is not a failed one, an evicted one is not a finished one.

The contract as checks is `master.backends.contract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a job is doing. QUEUED, RUNNING, OUT_OF_REACH and HELD are alive; EVICTED, FINISHED and LOST are ends."""

    QUEUED = "queued"  # accepted, waiting for a machine
    RUNNING = "running"  # the worker process started on a machine, or is in reach again
    OUT_OF_REACH = "out of reach"  # nobody can tell whether it runs on
    HELD = "held"  # waits for a person
    EVICTED = "evicted"  # the machine was taken away, with grace (SIGTERM first) or without
    FINISHED = "finished"  # the worker left by itself with status 0
    LOST = "lost"  # it ended in a way nobody asked for: a crash, a non-zero status, silence

    @property
    def ended(self) -> bool:
        return self in (State.EVICTED, State.FINISHED, State.LOST)


@dataclass(frozen=True)
class JobEvent:
    """One change of one job's state.

    `time_s` is seconds on the back end's clock; `machine` names the place ("slot-2"), so that the lives of one place
    can be counted; `graceful` says for EVICTED whether SIGTERM came first,
    None where the back end cannot know: then it was if the worker took its leave; `detail` is for people.
    `cancelled` says for EVICTED that the master asked for the end, so that nobody counts it as a kill; `heir` is the
    worker as which the back end starts it again by itself.
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
    heir: str = ""


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

        Each worker has at most one RUNNING, but for those after OUT_OF_REACH, and one ended. A back end that starts an
        evicted job again by itself does so under a new name, of which QUEUED is the first event.
        """

    @abstractmethod
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """End a job: SIGTERM and, after `grace_s`, SIGKILL. A name that is unknown or has ended is ignored."""

    def news(self) -> list[str]:
        """What a person should hear since the last call, and no event says."""
        return []

    def advice(self, detail: str) -> str:
        """What a person can do about a job that is held for the reason `detail`."""
        return "Mend the cause, then go on with gridml resume."

    def leave(self) -> None:
        """Let go of the workers so that a later master inherits them; a back end whose workers cannot go on without
        their master ends them. Nothing may be asked afterwards. Idempotent."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End every job and wait for their processes; afterwards none is left. Idempotent."""
