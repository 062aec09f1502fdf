"""The rows of array fields in a reply: rows that the worker will use soon, and that it lacks or has in an old version.

The rows of a chunk are sent piece by piece. Each reply contains the rows of the vertices that will be trained before
the next reply, and names the position up to which rows are there. So a row is sent once, before it is used, and not
again after every push of other workers that use it. The next chunk is granted ahead of time, with the rows of its first
vertices; the reply to the last push of the current chunk contains the ones of these rows that have changed since.

`master.caching.known_rows` records the rows that each worker has. `PendingReply` is a worker's message on its way
through the master, with the parts of the reply so far.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gridml.carriers.base import Message
from gridml.model.order import Ids, Touched, places, union, without
from gridml.model.vertex import describe
from gridml.protocol.changes import ChangedElements
from gridml.protocol.messages import Push, Sync, Verdict
from gridml.protocol.push import NOTHING, ChangedRows, PushContent, RowValues
from master.caching.known_rows import PUSHED, UNKNOWN, LeaseRows
from master.leases.leases import Leases
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerRecord
from master.store.spec import RunSpec
from master.store.store import Store
from master.store.versions import row_bytes


@dataclass(frozen=True)
class Malformed:
    """A message that cannot be decoded; sending it again would not help."""

    message: Message
    record: WorkerRecord
    reason: str


@dataclass
class PendingReply:
    """A worker's message on its way through the master, and the reply so far.

    Mutated by each step of the exchange in turn; `replies` turns it into a Reply.
    """

    message: Message
    sync: Sync
    #: tensors of the push; `NOTHING` once the push is merged
    content: PushContent
    #: record of the worker
    record: WorkerRecord
    #: the reason why the content is malformed or cannot be merged
    problem: str | None = None
    #: length of the message
    nbytes: int = 0
    #: verdict on the push; None without a push
    verdict: Verdict | None = None
    #: reason for the verdict
    reason: str = ""
    fast_forward: bool = False
    #: the round in which the push was gathered; -1: it was merged at once
    gathered: int = -1
    #: seconds for which the reply waited for the end of the round
    held_s: float = 0.0
    drop_optimiser: bool = False
    #: True: the push was refused only because of a spot check, and no fault was found
    is_held_back: bool = False
    #: reasons why parts of the push are not merged
    left_out: tuple[str, ...] = ()
    #: rows that were merged
    pushed: Touched = field(default_factory=dict)
    #: merged rows whose values in the replica are exactly the pushed values
    as_pushed: Touched = field(default_factory=dict)
    #: rows of a push that is credited and not merged yet: the worker has its own values, the replica those before
    unmerged: Touched = field(default_factory=dict)
    #: rows as they were pushed, by type: the worker has them, so the reply need only say how they differ now
    sent: Mapping[str, RowValues] = field(default_factory=dict)
    #: the new lease
    grant: LeaseState | None = None
    #: number of workers for which the worker's pace was chosen with this message; 0: it was not chosen yet
    paced_for: int = 0

    @property
    def push(self) -> Push:
        assert self.sync.push is not None, "only messages with a push are merged"
        return self.sync.push

    def release(self) -> None:
        """Free the content of the message once it is merged."""
        self.content, self.message = NOTHING, replace(self.message, payload=b"")

    @property
    def is_dropping(self) -> bool:
        """True if the worker will drop its replica and its leases, and ask for new ones."""
        return self.verdict is Verdict.REFUSED or self.sync.failure is not None


_NONE: Ids = np.empty(0, np.int64)
#: Bytes of the pushed rows of one message that are kept until its reply.
MAX_SENT_BYTES = 1 << 26
#: A reply contains the rows of the vertices of this many push intervals, plus the rows of the vertices that are trained
#: while a push and its reply travel.
INTERVALS = 1.5


def sent_rows(pushed: Mapping[str, RowValues], added: Container[str]) -> dict[str, RowValues]:
    """Return the rows of a push to keep until its reply: those of the types in `added`, unless they are too large."""
    kept = {name: rows for name, rows in pushed.items() if name in added}
    nbytes = sum(column.nbytes for rows in kept.values() for column in rows.fields.values())
    return kept if nbytes <= MAX_SENT_BYTES else {}


class Supply(NamedTuple):
    """The rows in a reply."""

    #: rows by type
    rows: dict[str, RowValues]
    #: True: the worker first drops all rows except those of the chunk that it trains
    forget: bool = False
    #: (lease, position before which its batches may begin because their rows are there), as in Reply
    ready: tuple[tuple[int, int], ...] = ()
    #: identifier that the worker returns to acknowledge the reply
    answer: str = ""
    #: rows by type that are not in `rows`, as changes of what the worker has
    changed: Mapping[str, ChangedRows] = MappingProxyType({})


class RowSupply:
    """Chooses the rows of each reply from what the worker has acknowledged and has been sent."""

    def __init__(self, spec: RunSpec, store: Store, leases: Leases, exact: frozenset[str]) -> None:
        self._spec = spec
        self._store = store
        self._leases = leases
        self._exact = exact  # the types of which changes of known rows are sent
        # The prefix is random, because a worker may acknowledge a reply of an earlier master, and its identifier must
        # match no reply of this master.
        self._answers = (f"{secrets.token_hex(4)}.{number}" for number in count())

    def supply(self, pending: PendingReply) -> Supply:
        """Return the rows for this reply."""
        rows, replica = pending.record.held.rows, self._store.replica
        if not replica.state.arrays:
            return Supply({})
        self._record_held(pending)
        forget = rows.is_too_much(self._row_bytes, self._leases.live)
        if forget:
            rows.known.clear()
        held = self._held(pending)
        wanted, ready, changed = [], {}, replica.state.changed
        # The other leases got their first rows when they were granted. They get newer rows once they come first.
        for lease in held if forget else [lease for lease in held if lease is held[0] or lease is pending.grant]:
            ready[lease.id] = self._reach(lease, pending)
            touched = self._used(lease, ready[lease.id])
            wanted.append({name: rows.known.lacking(name, ids, changed[name]) for name, ids in touched.items()})
            rows.answered.append(LeaseRows(lease.id, touched))
        rows.promised = {lease.id: rows.promised[lease.id] for lease in held if lease.id in rows.promised} | ready
        rows.version, rows.answer = replica.version, next(self._answers)
        lacking = union(wanted)
        as_changes = {} if forget else self._changes(pending, lacking)
        if as_changes:
            covered = {name: np.sort(each.ids) for name, each in as_changes.items()}
            rows.answered.append(LeaseRows(PUSHED, covered))
            lacking = without(lacking, covered)
        brought = dict(replica.state.part(lacking).rows)
        return Supply(brought, forget, tuple(ready.items()), rows.answer, as_changes)

    def _changes(self, pending: PendingReply, lacking: Touched) -> dict[str, ChangedRows]:
        """Return rows as changes of what the worker has, by type, where that is smaller. They are `lacking` rows that
        the worker has in an older version, and all rows that it pushed and that differ now: so the worker has these as
        the master knows them, and later replies can send changes of them, too."""
        if pending.sync.leaving:
            return {}
        replica, known, found = self._store.replica, pending.record.held.rows.known, {}
        for type_name in self._exact:
            wanted = lacking.get(type_name, _NONE)
            pushed = pending.sent.get(type_name, RowValues(_NONE, {}))
            differ = np.flatnonzero(~places(pending.as_pushed.get(type_name, _NONE), pushed.ids)[1])
            pushed = pushed.take(differ) if pushed.fields else pushed
            older = wanted[~places(np.sort(pushed.ids), wanted)[1]]
            versions = known.versions(type_name, older)
            older, versions = older[versions != UNKNOWN], versions[versions != UNKNOWN]
            had, forgotten = replica.rows_as_of(type_name, older, versions)
            here = np.delete(np.arange(len(older)), forgotten)
            ids = np.concatenate([pushed.ids, older[here]])
            now = replica.state.rows(type_name, ids)
            changes = {}
            for name, column in now.items():
                before = had[name][here]
                before = np.concatenate([pushed.fields[name], before]) if len(pushed.ids) else before
                changes[name] = ChangedElements.of(before, column)
            if changes and all(each is not None for each in changes.values()):
                found[type_name] = ChangedRows(ids, {n: each for n, each in changes.items() if each is not None})
        return found

    def give_older(self, pending: PendingReply, version: int) -> Supply:
        """Record that the worker gets every row of its new lease from an older version. Return a supply without rows,
        because the spot check sends them."""
        rows = pending.record.held.rows
        rows.clear()
        if pending.grant is not None:
            rows.answered.append(LeaseRows(pending.grant.id, self._rows(pending.grant)))
        rows.version, rows.answer = version, next(self._answers)
        return Supply({}, answer=rows.answer)

    def _held(self, pending: PendingReply) -> Sequence[LeaseState]:
        """Return the leases that the worker holds after this reply. The lease that it trains comes first."""
        held = self._store.ledger.leases.of(pending.record.name)
        pushed = () if pending.sync.push is None else (pending.sync.push.lease,)
        order = dict.fromkeys((*pushed, *pending.sync.holds, *held))
        return [held[number] for number in order if number in held]

    def _record_held(self, pending: PendingReply) -> None:
        """Record the rows that a worker has by now."""
        sync, rows = pending.sync, pending.record.held.rows
        received = sync.heard == rows.answer != "" and self._store.ledger.has_version(sync.have)
        named = {*sync.holds} if sync.push is None else {*sync.holds, sync.push.lease}
        as_pushed = pending.as_pushed if pending.verdict is Verdict.MERGED else {}
        pushed = pending.pushed if pending.verdict is Verdict.MERGED else {}
        rows.acknowledge(received, named, as_pushed, self._store.replica.version, pushed, self._exact)
        rows.known.drop(pending.unmerged)

    def _reach(self, lease: LeaseState, pending: PendingReply) -> int:
        """Return the position of a lease before which batches may begin after this reply. The worker counts on it: this
        position is promised."""
        record, push = pending.record, pending.sync.push
        # The position is never before the one promised earlier, which the worker may have reached. The promises of an
        # earlier master are unknown, so its leases count as promised to their end.
        promised = record.held.rows.promised.get(lease.id, lease.start if lease is pending.grant else lease.stop)
        if not self._piecewise:
            return lease.stop
        interval = max(1, record.assignment.push_every, 0 if push is None else push.vertices)
        travelling = math.ceil(min(pending.sync.travel_s * (record.measured.speed or 0.0), lease.stop))
        return min(max(promised, lease.upto + math.ceil(INTERVALS * interval) + travelling), lease.stop)

    def _used(self, lease: LeaseState, upto: int) -> Touched:
        """Return the rows for all batches of a lease that begin at or after its last credit and before `upto`."""
        # The last of these batches ends at or before `end` (`next_batch`; `Engine.batch_end` for those cut by edges).
        epochs = self._leases.epochs
        end = epochs.order(lease.epoch).boundary(upto + (self._spec.program.shape.batch or 1) + epochs.min_batch)
        if not lease.cut.touched or (end >= lease.stop and lease.upto == lease.start) or not self._piecewise:
            return self._rows(lease)
        vertices = self._leases.epochs.vertices(lease.epoch, lease.upto, min(end, lease.stop))
        edges = self._spec.graph.tables[self._leases.epochs.driver].edges.items()
        arrays = self._store.replica.state.arrays
        targets = ((self._target(name), each) for name, each in edges)
        return union({target: each.of(vertices)[1]} for target, each in targets if target in arrays)

    def _target(self, edge: str) -> str:
        return describe(self._spec.graph.tables[self._leases.epochs.driver].type.target(edge)).name

    @cached_property
    def _piecewise(self) -> bool:
        """True if a lease's rows are sent piece by piece. False if a lease is one mini-batch, and if f reaches rows
        from other local vertices, so that the rows of a range are unknown."""
        return self._leases.ahead and self._leases.epochs.components is None

    def _rows(self, lease: LeaseState) -> Touched:
        """Return all rows that a lease's chunk touches."""
        arrays = self._store.replica.state.arrays
        return {name: ids for name, ids in lease.cut.touched.items() if name in arrays}

    @cached_property
    def _row_bytes(self) -> dict[str, int]:
        """Bytes of a row, by type."""
        return {type_name: row_bytes(columns) for type_name, columns in self._store.replica.state.arrays.items()}
