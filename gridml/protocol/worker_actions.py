"""Actions that a worker's state machine asks its driver for, and events that the driver reports back.

`gridml.protocol.worker_state.WorkerState` returns the actions and handles the events. Rows count from 0 at the start of
the lease's chunk; times are seconds of the driver's clock.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol

from gridml.protocol.messages import Failure, Lease, Reply, Sync
from gridml.protocol.push import VertexKey


class Content(Enum):
    """The tensors to send with a sync."""

    NOTHING = auto()
    SNAPSHOT = auto()  # the last snapshot, and the changed fields of its rows
    OUTBOX = auto()  # the unanswered push of an earlier process of the job


class Use(Enum):
    """The use of a replica that came with a reply."""

    KEEP = auto()  # nothing was trained in between: the next chunk starts from it
    REBASE = auto()  # what was trained since the last snapshot is rebased onto it
    DROP = auto()  # discard it, and any replica that was kept before


class Reason(Enum):
    """The reason for which a worker leaves."""

    DISMISSED = auto()  # the master asked it to
    CHUNKS_DONE = auto()  # it has trained the number of chunks that it was started for
    EVICTED = auto()  # the machine is being reclaimed
    MAILBOX_CLOSED = auto()  # the master has given it up
    SAVING = auto()  # its push is unanswered, and is saved where it outlives the machine
    NO_ANSWER = auto()  # it has waited for `MAX_WAIT_S`


# --- actions


class BeginChunk(NamedTuple):
    """Fetch the chunk of `lease` and begin it from the kept replica. Report Began, ChunkFailed, or TrainingFailed where
    this machine lacks a file that the chunk refers to."""

    lease: Lease


class Train(NamedTuple):
    """Train batches of the chunk of `lease`, within rows [start, stop). Report Trained or TrainingFailed."""

    lease: Lease
    start: int
    stop: int
    due: int  # row at which the next push is due,
    due_s: float  # or time, whichever comes first
    overdue: bool  # a push is due, and waits only for the reply to the last one
    live: int  # workers that train
    credited: int  # vertices of the run that are credited, or trained here
    total: int  # vertices of the run
    per_epoch: int
    version: int  # of the replica that the training is based on

    @property
    def share(self) -> float:
        """The credited share of the run, 0 to 1."""
        return self.credited / self.total


class EndChunk(NamedTuple):
    """Release the chunk of `lease`, which is trained to its end."""

    lease: Lease


class TakeSnapshot(NamedTuple):
    """Copy the replica, and the changed fields of the rows [start, stop), for the next push. Report Copied, or
    TrainingFailed where a failure of f only shows now (devices work asynchronously)."""

    lease: Lease
    start: int
    stop: int


class Send(NamedTuple):
    """Send `sync` with its content; report Replied when there is a reply, MailboxClosed when there will be none."""

    sync: Sync
    content: Content


class Adopt(NamedTuple):
    """Use the replica of the last reply, if it had one; reset the optimisers where their state may be tainted."""

    use: Use
    live: int
    forget_optimisers: bool = False


class KeepOnly(NamedTuple):
    """Release all module vertices but these. No lease in hand or ahead touches others, and their training is merged."""

    modules: frozenset[VertexKey]


class Wait(NamedTuple):
    """Do nothing for `seconds`, or until an event."""

    seconds: float


class Leave(NamedTuple):
    """Stop. No action follows."""

    reason: Reason


Action = BeginChunk | Train | EndChunk | TakeSnapshot | Send | Adopt | KeepOnly | Wait | Leave


# --- the duration of actions, for simulations


class Prices(Protocol):
    """Durations in seconds on a machine of speed 1."""

    @property
    def exec_s(self) -> float: ...  # to train a vertex
    @property
    def copy_s(self) -> float: ...  # to copy a vertex at the start of a chunk
    @property
    def start_s(self) -> float: ...  # to begin a chunk
    @property
    def end_s(self) -> float: ...  # to end a chunk
    @property
    def push_s(self) -> float | None: ...  # to push
    @property
    def boot_s(self) -> float: ...  # to start a worker


def busy_seconds(action: Action, prices: Prices) -> float:
    """Return the seconds that an action takes; 0 for Train, whose rows only the driver knows."""
    if isinstance(action, TakeSnapshot):
        return prices.push_s or 0.0
    if isinstance(action, BeginChunk):
        return prices.start_s + (action.lease.stop - action.lease.start) * prices.copy_s
    return prices.end_s if isinstance(action, EndChunk) else 0.0


# --- events


class Began(NamedTuple):
    """The chunk was begun."""


class ChunkFailed(NamedTuple):
    """The chunk is unavailable: its lease has ended in between, or the file is damaged."""


class Trained(NamedTuple):
    """Rows before `stop` are trained."""

    stop: int
    whole: bool = True  # no component is cut at `stop`, so a push may end there
    gathering: bool = False  # gradients are accumulated for a later step, so a push should not end there yet


class TrainingFailed(NamedTuple):
    """f failed. The training since the last push is dropped."""

    failure: Failure


class Copied(NamedTuple):
    """The snapshot was taken."""


class Replied(NamedTuple):
    """The reply to the sync under way."""

    reply: Reply
    brings: bool = False  # a replica
    carry_s: float = 0.0  # CPU time of sending the last push and decoding its reply
    travel_s: float = 0.0  # from sending the last push to its reply


class Evicted(NamedTuple):
    """The machine is being reclaimed. May be reported repeatedly."""


class MailboxClosed(NamedTuple):
    """The master has removed the mailbox: no reply will come."""


Event = Began | ChunkFailed | Trained | TrainingFailed | Copied | Replied | Evicted | MailboxClosed
