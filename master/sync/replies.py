"""The reply to a worker: its lease, its pace, and what it lacks of the newest replica.

A reply that brings a large replica names the newest version's file, which was written and hashed already. To write
a replica of 100 MB into a reply and to hash it there takes a third of what a push costs the master. The file is
published under a second name, as chunks are, so every carrier can fetch it, and it stays as long as a reply that
names it may be read, whatever becomes of the version. Where it cannot be published replies carry their tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.caching.master_copy import travels_as_step
from gridml.carriers.base import MasterMailboxes
from gridml.engine.pace import batch_size, poll_interval_s, push_every
from gridml.model.order import Touched, union, without
from gridml.protocol.codec import Codec
from gridml.protocol.compression import BFLOAT16
from gridml.protocol.messages import Copies, Pace, Reply, Stored, Verdict
from gridml.protocol.push import ReplicaPart
from master.leases.leases import Leases
from master.leases.sizing import push_at_least_s
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerRecord
from master.store.ledger import Ledger
from master.store.spec import RunSpec
from master.store.store import Store
from master.sync.merger import Merger
from master.sync.moments import SharedMoments
from master.sync.rows import PendingReply, RowSupply, Supply
from master.sync.version_use import VersionUse
from master.trust.trust import Trust

Array = NDArray[Any]


MIN_FILE_BYTES = 1 << 20  # bytes: less is as soon written,
MIN_FILE_SHARE = 0.8  # as is a smaller part of the file, which is fetched whole


def sends_file(brings: int, file_bytes: int, *, rows: bool, short: bool) -> tuple[bool, str]:
    """Whether an answer that brings so many bytes of module tensors, in their full length unless `short`, and perhaps
    `rows`, names the file of so many bytes that holds them; and why."""
    if rows or short:
        return False, "the file holds other values"
    if brings < MIN_FILE_BYTES:
        return False, f"{brings:,} bytes are as soon written"
    if brings < MIN_FILE_SHARE * file_bytes:
        return False, f"{brings:,} bytes are a small part of the file's {file_bytes:,}"
    return True, "the file is written and hashed already"


@final
class ReplySender:
    """Sends answers through `mailboxes`, in the words of `codec`; the files that they name stay until nobody can want
    them any more."""

    def __init__(self, store: Store, versions: VersionUse, mailboxes: MasterMailboxes, codec: Codec) -> None:
        self._store = store
        self.versions = versions
        self._mailboxes = mailboxes
        self._codec = codec
        self._published: set[int] = set()  # versions
        self._began = False

    def offer(self, lacking: ReplicaPart) -> tuple[Stored, int] | None:
        """Return what an answer with this part of the newest version says instead of carrying it, and the bytes that
        are fetched; None where it had better carry it."""
        newest = self._store.replica.whole_file if lacking.modules else None
        if newest is None:
            return None
        path, sha256 = newest
        names = [name for tensors in lacking.modules.values() for name in tensors]
        brings = sum(tensor.nbytes for tensors in lacking.modules.values() for tensor in tensors.values())
        file_bytes = _size(path) if brings >= MIN_FILE_BYTES else 0
        if not sends_file(brings, file_bytes, rows=bool(lacking.rows), short=bool(lacking.short))[0]:
            return None
        version = self._store.replica.version
        self._begin()
        if not self._mailboxes.share(_name(version), path):
            return None
        self._published.add(version)
        return Stored(_name(version), sha256, names), file_bytes

    def _begin(self) -> None:
        """Retract what an earlier master left: who reads such an answer later asks again."""
        if not self._began:
            self._began = True
            for version in self._store.ledger.saved_versions:
                self._mailboxes.retract(_name(version))

    def send(self, pending: PendingReply, reply: Reply, brings: ReplicaPart) -> None:
        """Answer a draft, and retract what no worker can be on its way to."""
        record, message, payload = pending.record, pending.message, self._codec.write(reply, brings)
        if record.held.number >= 0:  # one that leaves is not remembered
            self.versions.record_reply(record, reply.version)
        record.contact.bytes_down += len(payload)
        self._mailboxes.answer(message.worker, message.number, payload)
        self._retract([version for version in self._published if not self.versions.is_referenced(version)])

    def close(self) -> None:
        """Retract all: nobody trains any more."""
        self._retract([*self._published])

    def _retract(self, versions: Iterable[int]) -> None:
        for version in versions:
            self._published.remove(version)
            self._mailboxes.retract(_name(version))


def _size(path: Path) -> int:
    """The bytes of a file; 0 where it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _name(version: int) -> str:
    return f"version-{version:08d}"


class PushPace:
    """How often each worker of a run pushes. `push_s` are CPU seconds that a push costs the master: a running
    mean."""

    def __init__(self, spec: RunSpec, ledger: Ledger, leases: Leases, merger: Merger) -> None:
        self._spec = spec
        self._ledger = ledger
        self._leases = leases
        self._merger = merger
        self._drift = 0.0  # as `push_every` has it, since the last group of pushes
        self.push_s = 0.0

    def merged(self, pushes: int, seconds: float) -> None:
        """So many pushes were merged in so many CPU seconds: the first ones size what follows them already."""
        self._drift = self._merger.drift
        if pushes and self.push_s == 0.0:
            self.push_s = seconds / pushes

    def answered(self, pushes: int, seconds: float) -> None:
        """So many pushes have cost so many CPU seconds, with their answers."""
        if pushes:
            each_s = seconds / pushes
            self.push_s = each_s if self.push_s == 0 else 0.8 * self.push_s + 0.2 * each_s

    def of(self, record: WorkerRecord) -> Pace:
        """Return what a worker is answered about its pace."""
        every = self.interval(record)
        live, compress = max(1, self._leases.live), self._spec.settings.compress
        credited, total = self._ledger.credited, self._leases.epochs.total
        every_s, per_epoch = push_at_least_s(live, self.push_s), self._leases.epochs.count
        return Pace(live, credited, total, every, compress, every_s, per_epoch)

    def interval(self, record: WorkerRecord) -> int:
        """The vertices between two pushes of a worker from now on, which its record is told."""
        live, settings, program = max(1, self._leases.live), self._spec.settings, self._spec.program
        size = batch_size(program.update.batch or 1, program.min_target_batch, live)
        every, reason = settings.push_every, "asked for"
        if every is None:
            sizing = self._leases.sizing
            # Before a worker has told, its part is taken to be the master's: both go through all that a push brings.
            cost_s = (sizing.push_s(record) or self.push_s) + self.push_s
            rate = sizing.rate(record) or 0.0
            ruled, reason = push_every(live, size, rate, cost_s, settings.push_budget, self._drift)
            every, sized = sizing.push_every(record, ruled, size, live, self.push_s)
            reason = sized if every != ruled else reason
        if every != record.assignment.push_every:
            record.assignment.push_every = every
            self._ledger.worker_push_interval(record.name, every, reason)
        return every


class Lacking(NamedTuple):
    """Module vertices that a worker's leases have `touched`, in which version it has them, and those it has no replica
    of; of these, those it has copies of all the same, and in which version."""

    touched: Touched
    version: int
    fresh: Touched
    copied: Touched
    copies: int


class Replies:
    """Answers drafts."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        leases: Leases,
        pace: PushPace,
        moments: SharedMoments,
        trust: Trust,
        sender: ReplySender,
    ) -> None:
        self._spec = spec
        self._store = store
        self._leases = leases
        self._pace = pace
        self._moments = moments
        self._row_supply = RowSupply(spec, store, leases)
        self._trust = trust
        self.sender = sender

    def send(self, pending: PendingReply, *, leave: bool) -> None:
        """Answer a draft; with `leave` there is nothing more to do for anybody."""
        sync, record = pending.sync, pending.record
        version, pace, lacking, supply = self._store.replica.version, self._pace.of(record), ReplicaPart(), Supply({})
        if pending.is_dropping:
            record.held.rows.clear()
        elif self._store.replica.state:
            supply = self._row_supply.supply(pending)
            lacks = self._lacking(pending)
            lacking = replace(
                self._store.replica.outgoing(*lacks), rows=supply.rows, moments=self._new_moments(pending, lacks)
            )
        start = self._trust.start(pending.grant)
        if start is not None:
            version, pace, lacking = start.version, start.pace, start.replica
            supply = self._row_supply.give_older(pending, version)
        pushed = None if sync.push is None else self._store.ledger.leases.get(sync.push.lease)
        lacking = replace(lacking, short=self._short) if self._short else lacking
        stored = self.sender.offer(lacking) if start is None and record.held.number >= 0 else None
        if stored is not None:
            lacking = ReplicaPart(moments=lacking.moments)
            record.contact.bytes_down += stored[1]
        reply = Reply(
            version=version,
            pace=pace,
            verdict=pending.verdict,
            reason=pending.reason,
            fast_forward=pending.fast_forward,
            lease=None
            if pending.grant is None
            else self._leases.chunks.describe(pending.grant, afresh=start is not None),
            stop_at=None if pushed is None else pushed.stop,
            drop_optimiser=pending.drop_optimiser,
            forget_rows=supply.forget,
            ready=supply.ready,
            moments=pending.verdict is Verdict.MERGED and self._moments.should_ask(record),
            answer=supply.answer,
            leave=leave,
            wait_s=poll_interval_s(self.sender.versions.active_workers - self._leases.live),
            process=sync.process,
            stored=None if stored is None else stored[0],
        )
        self.sender.send(pending, reply, lacking)

    def _lacking(self, pending: PendingReply) -> Lacking:
        """What a worker has of the module vertices that its leases touch."""
        sync, record, grant = pending.sync, pending.record, pending.grant
        # What the worker names it has heard of, so it has the replica that came with it. Any other answer may be lost.
        pushed = set() if sync.push is None else {sync.push.lease}
        named = {*sync.holds, *pushed}
        version = self._store.replica.version if pending.fast_forward else sync.have
        copies = sync.copies if sync.push is None else Copies(sync.push.lease, version)
        copied = None if copies is None else record.held.replicas_of.get(copies.lease)
        record.held.replicas_of = {
            number: lease for number, lease in record.held.replicas_of.items() if number in named
        }
        held = self._store.ledger.leases.of(record.name)
        touched = union(map(self._modules, held.values()))
        has = union(map(self._modules, record.held.replicas_of.values()))
        # A lease that ended behind its worker's back is named until the worker comes to it, and answers bring nothing
        # of it: from here on what it touches is older than the version that the worker says it has.
        current = {*held, *pushed}
        record.held.replicas_of = {
            number: lease for number, lease in record.held.replicas_of.items() if number in current
        }
        fresh = touched if not self._store.ledger.has_version(sync.have) else without(touched, has)
        if copied is not None and sync.push is None:
            record.held.replicas_of[copied.id] = copied  # its answer may be lost
        if grant is not None:
            record.held.replicas_of[grant.id] = grant
        if copies is None or copied is None:
            return Lacking(touched, version, fresh, {}, -1)
        return Lacking(touched, version, fresh, self._modules(copied), copies.version)

    def _new_moments(self, pending: PendingReply, lacking: Lacking) -> dict[str, Array]:
        """What others have gathered of the module vertices that a worker has never had, for its optimisers."""
        if pending.record.moments.tainted:
            return {}
        touched = without(lacking.fresh, lacking.copied)
        return self._moments.of([(name, index) for name, ids in touched.items() for index in ids.tolist()])

    def _modules(self, lease: LeaseState) -> Touched:
        """The module vertices that a lease's chunk touches."""
        arrays = self._store.replica.state.arrays
        return {type_name: ids for type_name, ids in lease.cut.touched.items() if type_name not in arrays}

    @cached_property
    def _short(self) -> frozenset[str]:
        """The tensors that travel in bfloat16: those that come as steps, so that no rounding comes home."""
        if self._spec.settings.compress_down != BFLOAT16:
            return frozenset()
        types = {table.type.name: table.type for table in self._spec.graph.replicated}
        return frozenset(
            name
            for key, vertex in self._store.replica.state.modules.items()
            for name, tensor in vertex.tensors.items()
            if tensor.dtype == np.float32 and travels_as_step(types[key[0]], name, tensor)
        )
