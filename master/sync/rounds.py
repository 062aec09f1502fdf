"""Rounds: when a round of pushes is due, when it ends, and which replies wait for its end.

With a rule that gathers (`gridml.rounds`), pushes are credited as they arrive, and gathered in buffers that are stored
with the replica. All workers push at a tick, and none waits: while its push is merged a worker trains on. The replies
to these pushes are sent when the round has ended, so that they bring its result. If the master dies, its successor
finds what was gathered in the newest version, and the messages without a reply in their mailboxes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

from gridml.aggregates import Merge
from gridml.carriers.base import Message
from gridml.protocol.messages import Push
from master.leases.leases import Leases
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.reader import ROUNDS
from master.store.store import Store
from master.sync.merger import Merger
from master.sync.rows import PendingReply

#: Share of a round before its tick in which a push counts as the worker's push of the tick. Also the share for which
#: the master waits after the tick for the workers that have not pushed.
WINDOW = 0.25
#: Maximum seconds of either: a worker whose lease ends meanwhile is idle, and leaves after a while (`--silence`).
MAX_WINDOW_S = 15.0
#: Share of the workers that must have pushed before the master leaves out the late ones; after four times as long it
#: waits for nobody.
QUORUM = 0.5
#: Rounds whose versions are kept, to tell the age of pushes. An older base counts as old as the oldest of them.
MAX_ENDS = 64


class RoundFacts(NamedTuple):
    """The facts that decide whether a round ends."""

    now_s: float
    due_s: float  #: when pushes that were sent at the tick should have arrived
    interval_s: float  #: seconds between two ticks
    pushed: int  #: workers that have pushed for this round
    waited_for: int  #: workers that train and have not


def window_s(interval_s: float) -> float:
    """Return the seconds before and after a tick in which pushes count as those of the tick."""
    return min(MAX_WINDOW_S, WINDOW * interval_s)


def ends(facts: RoundFacts) -> tuple[bool, str]:
    """Return (whether a round in which something was pushed ends now, reason)."""
    if not facts.waited_for:
        return True, "all workers have pushed"
    late_s, grace_s = facts.now_s - facts.due_s, window_s(facts.interval_s)
    quorum = facts.pushed >= QUORUM * (facts.pushed + facts.waited_for)
    if late_s >= (grace_s if quorum else 4 * grace_s):
        return True, f"{facts.waited_for} of {facts.pushed + facts.waited_for} workers are late"
    return False, "not all workers have pushed" if quorum else "too few workers have pushed"


@final
class RoundEnds:
    """The rounds of one run. `end`, `ended` and `undo` must be called inside the ledger's transaction."""

    def __init__(
        self, store: Store, leases: Leases, workers: WorkerTable, merger: Merger, clock: Callable[[], float]
    ) -> None:
        kept: dict[str, Any] = store.ledger.get(ROUNDS, {})
        #: number of rounds that have ended, in this and earlier masters
        self.number: int = kept.get("number", 0)
        self._late: int = kept.get("late", 0)  # pushes that came too late for their round
        #: versions that ended the last rounds, the newest last
        self._ends: list[int] = kept.get("ends", [])
        self.used = merger.gathers
        self.interval_s = 0.0  #: seconds between two ticks; 0: pushes are not gathered, or costs are not known yet
        self._delay_s = 0.0  #: from a tick until its pushes have arrived
        self._due_s = 0.0  #: the tick
        self._has_gathered = self.used  # an earlier master may have gathered pushes
        self._waiting: list[PendingReply] = []  # messages whose replies wait for the end of the round
        self._store = store
        self._leases = leases
        self._workers = workers
        self._merger = merger
        self._clock = clock

    def facts(self, record: WorkerRecord, push: Push) -> tuple[int, int]:
        """Return (`Merge.rounds`, `Merge.before`) of a push."""
        number, vertices = record.assignment.gathered
        return sum(version > push.base for version in self._ends), vertices if number == self.number else 0

    def set_interval(self, interval_s: float, delay_s: float) -> None:
        """Set the seconds between two ticks, from the next tick on (0: pushes are not gathered), and those from a tick
        until a typical push has arrived."""
        if self.interval_s == 0.0:
            self._due_s = self._clock() + interval_s
        self.interval_s, self._delay_s = interval_s, delay_s

    def due_in_s(self, record: WorkerRecord) -> float:
        """Return the seconds until a worker's next push is due. The worker is waited for then."""
        now = self._clock()
        if now >= self._due_s + self.interval_s and not self._waiting:
            self._due_s = now  # no worker lived at the tick
        near = self._is_near(now)
        record.assignment.round = self.number + near
        return max(0.0, self._due_s + (self.interval_s if near else 0.0) - now)

    def gather(self, record: WorkerRecord, push: Push, merge: Merge) -> int:
        """Record that a push is gathered; return the number of its round."""
        self._has_gathered = True
        self._late += merge.rounds > 0
        record.assignment.gathered = self.number, merge.before + merge.vertices
        record.assignment.last_gathered = push.lease, push.sequence
        return self.number

    def round_of(self, record: WorkerRecord, push: Push) -> int:
        """Return the round in which a push was gathered that is repeated; -1: it was not, or by an earlier master. This
        one then sends all tensors again (`Replica.load`), so that the worker need not add the step to them."""
        known = record.assignment.last_gathered == (push.lease, push.sequence)
        return record.assignment.gathered[0] if known else -1

    def undo(self) -> list[PendingReply]:
        """Begin a new round after a rollback; return the messages whose replies waited. What they pushed is undone."""
        self.number, self._ends, self._has_gathered = self.number + 1, [], self.used
        self._record()
        return self.release()

    def holds(self, pending: PendingReply) -> bool:
        """Return whether the reply to a push waits for the end of its round, and keep the message if so."""
        waits = pending.gathered == self.number and self._leases.live > 1 and self._is_near(self._clock())
        # A worker that holds no lease would only wait.
        if waits and self._store.ledger.leases.of(pending.record.name):
            pending.record.assignment.round = self.number + 1
            pending.as_pushed = {}  # by the time of the reply, others may have changed these rows
            pending.held_s = -self._clock()
            self._waiting.append(pending)
            return True
        return False

    def is_held(self, message: Message) -> bool:
        """Return whether a message was handled before, and its reply waits."""
        return any(
            (each.message.worker, each.message.number) == (message.worker, message.number) for each in self._waiting
        )

    def is_over(self) -> bool:
        """Return whether the round ends now."""
        now = self._clock()
        if not (self._waiting or self._has_gathered):
            return False
        if self._leases.epochs.is_finished():
            return True
        if not self._waiting and now < self._due_s and self.interval_s > 0:
            return False  # no push is due
        records = map(self._workers.get, {lease.worker for lease in self._store.ledger.leases})
        rounds = [record.assignment.round for record in records if record is not None]
        late = sum(number <= self.number for number in rounds)
        return ends(RoundFacts(now, self._due_s + self._delay_s, self.interval_s, len(rounds) - late, late))[0]

    def end(self, version: int) -> bool:
        """End the round. Return whether the replica has changed, to become `version`."""
        now, share = self._clock(), self._store.ledger.credited / max(1, self._leases.epochs.total)
        changed = self._merger.end_round(share)
        if changed:
            self._store.replica.put(changed, {}, version)
            self.ended(version)
        self._has_gathered = False
        # A tick that was missed, while no worker lived, is not made up for.
        self._due_s += self.interval_s if now < self._due_s + self.interval_s else now + self.interval_s - self._due_s
        return bool(changed)

    def ended(self, version: int) -> None:
        """Record that `version` holds all that was gathered before."""
        self.number, self._has_gathered = self.number + 1, False
        self._ends = [*self._ends, version][-MAX_ENDS:]
        self._record()

    def release(self) -> list[PendingReply]:
        """Return the messages whose replies wait no longer, but those of workers that have ended or sent another."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.held_s += self._clock()
        return [
            each
            for each in waiting
            if self._workers.is_current(each.record) and each.record.held.number == each.message.number
        ]

    def _record(self) -> None:
        self._store.ledger.set(ROUNDS, {"number": self.number, "ends": self._ends, "late": self._late})

    def _is_near(self, now: float) -> bool:
        """Return whether a push of this moment counts as that of the tick."""
        return self.interval_s > 0 and now >= self._due_s - window_s(self.interval_s)
