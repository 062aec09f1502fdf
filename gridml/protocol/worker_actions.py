"""What a worker's protocol asks of whoever drives it (actions), and what the driver reports to it (events).

`gridml.protocol.worker_state.WorkerState` gives the actions and takes the events. Rows count from 0 at the beginning of
a lease's chunk; times are seconds of the driver's clock.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol

from gridml.protocol.messages import Failure, Lease, Reply, Sync
from gridml.protocol.push import VertexKey


class Content(Enum):
    """What travels beside a sync."""

    NOTHING = auto()
    SNAPSHOT = auto()  # the snapshot that was taken last, and the changed fields of its rows
    OUTBOX = auto()  # the push that an earlier process of this worker's job had no answer to


class Use(Enum):
    """What becomes of replicas that came beside replies."""

    KEEP = auto()  # nothing has been trained since: the next chunk starts from it
    REBASE = auto()  # what was trained since the last snapshot goes on top of it
    DROP = auto()  # it is not used, nor is any that was kept


class Reason(Enum):
    """Why a worker leaves."""

    DISMISSED = auto()  # the master said so
    CHUNKS_DONE = auto()  # it has trained as many chunks as it was to
    EVICTED = auto()  # the machine is being taken away
    MAILBOX_CLOSED = auto()  # the master has given it up
    SAVING = auto()  # its push has no answer and is to be put where it outlives the machine
    NO_ANSWER = auto()  # it has waited too long


# --- actions


class BeginChunk(NamedTuple):
    """Fetch the chunk of `lease`, begin it, and start from the replica that was kept. Report Began,
    ChunkFailed, or Failed where this machine lacks what the chunk refers to."""

    lease: Lease


class Train(NamedTuple):
    """Train rows of the chunk of `lease` from `start`, one batch or several, none beyond `stop`. Report Trained or
    Failed.

    The next push is due at row `due` or at the time `due_s`, whichever comes first. `overdue` says that it is due and
    waits only for the answer to the last one. `live` workers train; `credited` of `total` vertices of the run are
    credited or trained here, of `per_epoch` in each epoch, and the replica is that of `version` and what was trained on
    top.
    """

    lease: Lease
    start: int
    stop: int
    due: int
    due_s: float
    overdue: bool
    live: int
    credited: int
    total: int
    per_epoch: int
    version: int

    @property
    def share(self) -> float:
        """How much of the run (0 to 1) is credited."""
        return self.credited / self.total


class EndChunk(NamedTuple):
    """The chunk of `lease` is trained to its end: let go of it."""

    lease: Lease


class TakeSnapshot(NamedTuple):
    """Copy the replica, and the changed fields of the rows [start, stop), which are pushed next. Report Copied, or
    Failed where it shows only now that f failed."""

    lease: Lease
    start: int
    stop: int


class Send(NamedTuple):
    """Send `sync` with its content; report Replied when there is a reply, MailboxClosed when there will be none."""

    sync: Sync
    content: Content


class Adopt(NamedTuple):
    """Use the replica beside the last reply, if one came; forget the state of optimisers where it may be spoilt."""

    use: Use
    live: int
    forget_optimisers: bool = False


class KeepOnly(NamedTuple):
    """Let go of all module vertices but these: no lease in hand or ahead touches others, and what was trained of them
    is merged."""

    modules: frozenset[VertexKey]


class Wait(NamedTuple):
    """Do nothing for `seconds`, or until there is an event."""

    seconds: float


class Leave(NamedTuple):
    """Stop: there will be no other action."""

    reason: Reason


Action = BeginChunk | Train | EndChunk | TakeSnapshot | Send | Adopt | KeepOnly | Wait | Leave


# --- what actions cost in time, for simulations


class Prices(Protocol):
    """What things cost, in seconds of a machine of speed 1."""

    @property
    def exec_s(self) -> float: ...  # to train a vertex
    @property
    def copy_s(self) -> float: ...  # to copy one,
    @property
    def start_s(self) -> float: ...  # and to begin a chunk,
    @property
    def end_s(self) -> float: ...  # and to end it
    @property
    def push_s(self) -> float | None: ...  # to push
    @property
    def boot_s(self) -> float: ...  # to come up


def busy_seconds(action: Action, prices: Prices) -> float:
    """How long a worker is busy with an action; training is priced by its driver, who knows how many rows it was."""
    if isinstance(action, TakeSnapshot):
        return prices.push_s or 0.0
    if isinstance(action, BeginChunk):
        return prices.start_s + (action.lease.stop - action.lease.start) * prices.copy_s
    return prices.end_s if isinstance(action, EndChunk) else 0.0


# --- events


class Began(NamedTuple):
    """The chunk is begun."""


class ChunkFailed(NamedTuple):
    """The chunk cannot be had: its lease has ended meanwhile, or the file is damaged."""


class Trained(NamedTuple):
    """Rows up to `stop` are trained. `whole`: no component is cut there, so that a push may end there. `gathering`:
    gradients are gathered whose step comes with later rows, so that a push had better end there."""

    stop: int
    whole: bool = True
    gathering: bool = False


class TrainingFailed(NamedTuple):
    """f failed. What was trained since the last push is dropped."""

    failure: Failure


class Copied(NamedTuple):
    """The snapshot is taken."""


class Replied(NamedTuple):
    """The reply to the sync under way; `brings` says whether a replica came beside it. Sending the sync took `carry_s`
    CPU seconds; a push was answered after `travel_s`."""

    reply: Reply
    brings: bool = False
    carry_s: float = 0.0
    travel_s: float = 0.0


class Evicted(NamedTuple):
    """The machine is being taken away. May be reported again."""


class MailboxClosed(NamedTuple):
    """There will be no reply any more."""


Event = Began | ChunkFailed | Trained | TrainingFailed | Copied | Replied | Evicted | MailboxClosed
