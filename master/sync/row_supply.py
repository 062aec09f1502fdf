"""Which rows of array fields an answer brings: those that a worker's chunks touch and that it lacks as they are.

While a chunk is in hand, that is what others changed since the last answer. The next one is granted ahead, with what
the worker lacks of it then; it is begun while the last push of the one before travels, and the answer to that brings
what has changed since. So a row is not brought again and again before it is used.
"""

from __future__ import annotations

from functools import cached_property

from gridml.protocol.messages import Verdict
from gridml.protocol.push import RowValues
from master.known_rows import LeaseRows, Touched, WorkerRows
from master.leases.leases import Leases
from master.records import LeaseState
from master.store.replica import union, without
from master.store.store import Store
from master.sync.draft import Draft

WORKER_BYTES = 1 << 29  # of rows that a worker keeps, about
KNOWN_BYTES = 1 << 28  # that the master takes to know which those are, for all workers


class RowSupply:
    """Knows what each worker has, by what it says and was answered."""

    def __init__(self, store: Store, leases: Leases) -> None:
        self._store = store
        self._leases = leases

    def lacking(self, draft: Draft) -> tuple[dict[str, RowValues], bool]:
        """Return the rows to bring, by type, and whether the worker is to forget first all that it keeps beside those
        of the chunk in hand."""
        rows, replica = draft.record.rows, self._store.replica
        if not replica.state.arrays:
            return {}, False
        self._confirm(draft)
        forget = self._too_many(rows)
        if forget:
            rows.clear()
        elif draft.verdict is Verdict.MERGED:
            self._end(draft)
        held = self._held(draft)
        in_hand, ahead = (held[0] if held else None), held[1:]
        wanted: list[Touched] = []
        if in_hand is not None:
            known = rows.in_hand is not None and rows.in_hand.lease == in_hand.lease
            wanted.append(self._changed(draft, in_hand.touched) if known else self._unknown(rows, in_hand.touched))
        rows.in_hand, rows.version = in_hand, replica.version
        for lease in ahead:
            if forget or (draft.grant is not None and lease.lease == draft.grant.id):
                wanted.append(self._unknown(rows, lease.touched))
                rows.granted.append(lease)
        return dict(replica.state.part(union(wanted)).rows), forget

    def give_older(self, draft: Draft) -> None:
        """A worker is given what the lease that it is granted touches as it was in an older version."""
        draft.record.rows.clear()
        draft.record.rows.in_hand = None if draft.grant is None else self._rows(draft.grant)

    def _held(self, draft: Draft) -> list[LeaseRows]:
        """The leases that the worker holds after this answer, the one that it works on first."""
        held = self._store.ledger.leases.of(draft.record.name)
        pushed = () if draft.sync.push is None else (draft.sync.push.lease,)
        order = dict.fromkeys((*pushed, *draft.sync.holds, *held))
        return [self._rows(held[number]) for number in order if number in held]

    def _rows(self, lease: LeaseState) -> LeaseRows:
        arrays = self._store.replica.state.arrays
        return LeaseRows(lease.id, {name: ids for name, ids in lease.cut.touched.items() if name in arrays})

    def _confirm(self, draft: Draft) -> None:
        """Take the worker to have what the last answer brought, if it is the process that heard it."""
        sync, rows = draft.sync, draft.record.rows
        begun_anew = sync.have < 0 or sync.process != rows.process or not self._store.ledger.has_version(sync.have)
        if begun_anew or draft.verdict is Verdict.REPEATED:
            rows.clear()
        rows.process = sync.process
        named = {*sync.holds} if sync.push is None else {*sync.holds, sync.push.lease}
        if rows.in_hand is not None and rows.in_hand.lease not in named:
            rows.in_hand = None
        for lease in rows.granted:
            if lease.lease in named:
                rows.known.learn(lease.touched, rows.version)
        rows.granted.clear()

    def _too_many(self, rows: WorkerRows) -> bool:
        counts = rows.known.counts()
        nbytes = sum(counts[name] * each for name, each in self._row_bytes.items() if name in counts)
        return nbytes > WORKER_BYTES or rows.known.nbytes > KNOWN_BYTES // max(1, self._leases.live)

    @cached_property
    def _row_bytes(self) -> dict[str, int]:
        """Bytes of a row, by type."""
        arrays = self._store.replica.state.arrays
        return {name: sum(c.nbytes // max(1, len(c)) for c in columns.values()) for name, columns in arrays.items()}

    def _end(self, draft: Draft) -> None:
        """Take note of the rows of a lease that this push has ended. They are of the version that the worker has; those
        that it pushed are its own, and have changed, so they count as lacking, but for those that the master took as
        they were."""
        rows, lease = draft.record.rows, draft.push.lease
        if rows.in_hand is None or rows.in_hand.lease != lease or self._store.ledger.leases.get(lease) is not None:
            return
        rows.known.learn(rows.in_hand.touched, draft.sync.have)
        rows.known.learn(draft.as_pushed, self._store.replica.version)

    def _changed(self, draft: Draft, touched: Touched) -> Touched:
        """What has changed since the last answer, but is not as the worker pushed it."""
        since = self._store.replica.version if draft.fast_forward else draft.sync.have
        changed = self._store.replica.state.changed
        newer = {name: ids[changed[name][ids] > since] for name, ids in touched.items()}
        return without(newer, draft.as_pushed)

    def _unknown(self, rows: WorkerRows, touched: Touched) -> Touched:
        changed = self._store.replica.state.changed
        return {name: rows.known.lacking(name, ids, changed[name]) for name, ids in touched.items()}
