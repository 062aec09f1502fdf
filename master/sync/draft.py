"""A message of a worker on its way through the master: what it says, and what will be answered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gridml.carriers.base import Message
from gridml.protocol.messages import Push, Sync, Verdict
from gridml.protocol.push import NOTHING, PushContent
from master.known_rows import Touched
from master.records import LeaseState, WorkerRecord


@dataclass(frozen=True)
class Malformed:
    """A message that makes no sense, and would make none if it came again; `reason` says what is wrong with it."""

    message: Message
    record: WorkerRecord
    reason: str


@dataclass
class Draft:
    """An answer being made. `record` is the worker's, `problem` says why what came beside the sync makes no sense or
    cannot be merged, and `grant` is the lease that the answer brings. `nbytes` is the length of the message.

    `pushed` are the rows that were merged; those `as_pushed` the master has just as the worker does.
    """

    message: Message
    sync: Sync
    content: PushContent
    record: WorkerRecord
    problem: str | None = None
    nbytes: int = 0
    verdict: Verdict | None = None
    reason: str = ""
    fast_forward: bool = False
    drop_optimiser: bool = False
    is_kept: bool = False  # for a spot check: nothing is wrong with it as far as is known
    left_out: tuple[str, ...] = ()  # why something of the push is not taken
    pushed: Touched = field(default_factory=dict)
    as_pushed: Touched = field(default_factory=dict)
    grant: LeaseState | None = None

    @property
    def push(self) -> Push:
        assert self.sync.push is not None, "only drafts with a push come here"
        return self.sync.push

    def let_go(self) -> None:
        """Free what the message brought: it is merged, and its memory is wanted."""
        self.content, self.message = NOTHING, replace(self.message, payload=b"")

    @property
    def dropping(self) -> bool:
        """Whether the worker will drop its replica and its leases, and ask for new ones."""
        return self.verdict is Verdict.REFUSED or self.sync.failure is not None
