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
    SNAPSHOT = auto()  # the last snapshot, and the fields of its rows that f changed
    OUTBOX = auto()  # the unanswered push of an earlier process of the job


class Use(Enum):
    """The use of a replica that came with a reply."""

    KEEP = auto()  # keep it for the next chunk: nothing was trained since the last snapshot
    REBASE = auto()  # take it, and apply to it the changes of the training since the last snapshot
    DROP = auto()  # discard it, and any replica that was kept before


class Reason(Enum):
    """The reason why a worker leaves."""

    DISMISSED = auto()  # the master has sent `leave`
    CHUNKS_DONE = auto()  # it has trained as many chunks as it was started for
    EVICTED = auto()  # the machine is being reclaimed
    MAILBOX_CLOSED = auto()  # the master has given this worker up and removed its mailbox
    SAVING = auto()  # its push is unanswered and is saved in the outbox, which outlives the machine
    NO_ANSWER = auto()  # no reply came within `MAX_WAIT_S`


# --- actions


class BeginChunk(NamedTuple):
    """Fetch the chunk of `lease` and begin it from the kept replica. Report Began or ChunkFailed, or TrainingFailed if
    this machine lacks a file that the chunk refers to."""

    lease: Lease


class Train(NamedTuple):
    """Train batches of the chunk of `lease`, within rows [start, stop). Report Trained or TrainingFailed."""

    lease: Lease
    start: int
    stop: int
    due: int  # the next push is due at this row, or at `due_s` if that comes first
    due_s: float  # time at which the next push is due
    overdue: bool  # a push is due already, but must wait for the reply to the last push
    live: int  # workers that hold leases
    credited: int  # vertices credited at the last reply, plus those trained here since; at most `total`
    total: int  # vertices of the run, over all epochs
    per_epoch: int  # vertices of an epoch
    version: int  # version of the replica that the training is based on
    added: int = 0  # as in `Pace`
    others: float = 0.0  # as in `Pace`
    gathered: bool = False  # as in `Pace`

    @property
    def share(self) -> float:
        """`credited` as a share of the run, 0 to 1."""
        return self.credited / self.total


class EndChunk(NamedTuple):
    """Release the chunk of `lease`, which is trained to its end."""

    lease: Lease


class TakeSnapshot(NamedTuple):
    """Copy the replica, and the changed fields of the rows [start, stop), for the next push. Report Copied, or
    TrainingFailed if f had failed before, unnoticed because devices work asynchronously."""

    lease: Lease
    start: int
    stop: int


class Send(NamedTuple):
    """Send `sync` with its content. Later report Replied, or MailboxClosed if no reply will come."""

    sync: Sync
    content: Content


class Adopt(NamedTuple):
    """Use the replica of the last reply, if it had one."""

    use: Use
    live: int  # workers that hold leases
    forget_optimisers: bool = False  # reset the optimisers, whose state is based on dropped work


class KeepOnly(NamedTuple):
    """Keep these module vertices and release all others, because no lease in hand or ahead touches the others. The
    training of the others is merged already."""

    modules: frozenset[VertexKey]


class Wait(NamedTuple):
    """Do nothing for `seconds`, or until an event comes."""

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
    """The chunk is unavailable: its lease has ended by now, or the file is damaged."""


class Trained(NamedTuple):
    """Rows before `stop` are trained."""

    stop: int
    whole: bool = True  # a push that ends at `stop` cuts no component (local vertices that edges connect)
    is_accumulating: bool = False  # gradients wait for an optimiser step, so a push should not end at `stop`


class TrainingFailed(NamedTuple):
    """f failed. The training since the last push is dropped."""

    failure: Failure


class Copied(NamedTuple):
    """The snapshot was taken."""

    #: Seconds after TakeSnapshot in which the device still trained. They do not count as cost of the snapshot.
    trained_s: float = 0.0


class Replied(NamedTuple):
    """The reply to the sync under way."""

    reply: Reply
    brings: bool = False  # a replica came with the reply
    carry_s: float = 0.0  # CPU seconds of sending the last push and decoding its reply
    travel_s: float = 0.0  # seconds from sending the last push to its reply


class Evicted(NamedTuple):
    """The machine is being reclaimed. Can be reported repeatedly."""


class MailboxClosed(NamedTuple):
    """The master has removed the mailbox: no reply will come."""


Event = Began | ChunkFailed | Trained | TrainingFailed | Copied | Replied | Evicted | MailboxClosed
