"""Replies to workers: lease, pace, and the parts of the newest replica that the worker lacks.

A reply with a large replica names the file of the newest version, which is already written and hashed: writing and
hashing 100 MB again for each reply would take a third of the master's cost of a push. The file is shared under a
second name, as chunks are, so every carrier can fetch it. It stays as long as a reply that names it may be read, even
after the version is removed. If it cannot be shared, replies carry the tensors.
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
from gridml.engine.pace import PaceFacts, TypicalCosts, choose_pace, poll_interval_s
from gridml.model.order import Touched, union, without
from gridml.model.vertex import describe
from gridml.protocol.compression import BFLOAT16
from gridml.protocol.messages import MAX_PUSH_INTERVAL_S, NO_PUSH, Copies, Pace, Reply, Stored, Verdict
from gridml.protocol.push import Codec, ReplicaPart
from master.leases.leases import Leases
from master.leases.sizing import merging_s, push_at_least_s
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerRecord
from master.store.ledger import Ledger
from master.store.settings import SizeSettings
from master.store.spec import RunSpec
from master.store.store import Store
from master.sync.merger import Merger
from master.sync.moments import SharedMoments
from master.sync.rounds import RoundEnds
from master.sync.rows import PendingReply, RowSupply, Supply
from master.sync.version_use import VersionUse
from master.trust.trust import Trust

Array = NDArray[Any]


#: A reply of fewer bytes does not name the file: its tensors are written as fast, or fetching the file takes longer.
MIN_FILE_BYTES = 1 << 20
#: The same for workers that share a disk with the master, and fetch the file without a round trip.
MIN_NEAR_FILE_BYTES = 1 << 16
#: Share of the file that a reply must need, because the worker fetches the file whole.
MIN_FILE_SHARE = 0.8


def sends_file(brings: int, file_bytes: int, *, rows: bool, short: bool, near: bool) -> tuple[bool, str]:
    """Return (whether a reply names the newest version's file instead of carrying tensors, why).

    `brings` are the bytes of module tensors in the reply, `file_bytes` those of the file. `rows`: the reply has rows,
    too; `short`: tensors travel in a shorter dtype; `near`: workers share a disk with the master.
    """
    if rows or short:
        return False, "the file holds other values"
    if brings < (MIN_NEAR_FILE_BYTES if near else MIN_FILE_BYTES):
        return False, f"{brings:,} bytes are written as fast"
    if brings < MIN_FILE_SHARE * file_bytes:
        return False, f"{brings:,} bytes are a small part of the file's {file_bytes:,}"
    return True, "the file is written and hashed already"


@final
class ReplySender:
    """Sends replies through `mailboxes`, encoded by `codec`, and keeps the files that they name until no worker can
    need them."""

    def __init__(
        self, store: Store, versions: VersionUse, mailboxes: MasterMailboxes, codec: Codec, *, near: bool
    ) -> None:
        self._store = store
        self.versions = versions
        self._mailboxes = mailboxes
        self._codec = codec
        #: workers share a disk with the master
        self._near = near
        #: versions whose file is shared; removed only by `_retract`
        self._published: set[int] = set()
        self._began = False

    def offer(self, lacking: ReplicaPart) -> tuple[Stored, int] | None:
        """Return (the file that a reply names instead of carrying this part of the newest version, the bytes that the
        worker then fetches); None where the reply should carry the part."""
        newest = self._store.replica.whole_file if lacking.modules else None
        if newest is None:
            return None
        path, sha256 = newest
        names = [name for tensors in lacking.modules.values() for name in tensors]
        brings = sum(tensor.nbytes for tensors in lacking.modules.values() for tensor in tensors.values())
        file_bytes, rows, short = _size(path), bool(lacking.rows), bool(lacking.short)
        if not sends_file(brings, file_bytes, rows=rows, short=short, near=self._near)[0]:
            return None
        version = self._store.replica.version
        self._begin()
        if version not in self._published and not self._mailboxes.share(_name(version), path):
            return None
        self._published.add(version)
        return Stored(_name(version), sha256, names), file_bytes

    def _begin(self) -> None:
        """Retract the files of an earlier master. A worker that reads a reply naming one asks again."""
        if not self._began:
            self._began = True
            for version in self._store.ledger.saved_versions:
                self._mailboxes.retract(_name(version))

    def send(self, pending: PendingReply, reply: Reply, brings: ReplicaPart) -> None:
        """Send a reply, and retract the files that no reply under way names."""
        record, message, payload = pending.record, pending.message, self._codec.write(reply, brings)
        if record.held.number >= 0:  # negative for a worker that leaves, which is not tracked
            self.versions.record_reply(record, reply.version)
        record.contact.bytes_down += len(payload)
        self._mailboxes.answer(message.worker, message.number, payload)
        self._retract([version for version in self._published if not self.versions.is_referenced(version)])

    def close(self) -> None:
        """Retract all files: the run has ended."""
        self._retract([*self._published])

    def _retract(self, versions: Iterable[int]) -> None:
        for version in versions:
            self._published.remove(version)
            self._mailboxes.retract(_name(version))


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _name(version: int) -> str:
    return f"version-{version:08d}"


def edges_trained(spec: RunSpec) -> float:
    """Return the mean number of edges of a vertex that train a row each (`Shape.trained_by_edge`), at least 1."""
    shape = spec.program.shape
    driving = spec.graph.tables[describe(shape.driver).name]
    ends = {name: describe(driving.type.target(name)).name for name in driving.edges}
    stepping = [len(edges.targets) for name, edges in driving.edges.items() if ends[name] in shape.trained_by_edge]
    return max(1.0, sum(stepping) / max(1, driving.count))


class PushPace:
    """The push interval of each worker of a run."""

    def __init__(
        self, spec: RunSpec, sizes: SizeSettings, ledger: Ledger, leases: Leases, merger: Merger, rounds: RoundEnds
    ) -> None:
        self._program = spec.program
        self._can_add = spec.program.adds_steps(spec.graph)
        #: steps of rows for each vertex: its edges, where each is a step
        self._weight = edges_trained(spec) if spec.program.shape.trained_by_edge else 1.0
        self.sizes = sizes
        self._ledger = ledger
        self._leases = leases
        self._merger = merger
        self.rounds = rounds
        self._ending_s = 0.0  # CPU seconds of the ends of rounds since the last group of pushes
        #: drift of the replica per vertex (`choose_pace`), as of the last group of pushes
        self._drift = 0.0
        #: CPU seconds that a push costs the master, a running mean; 0 before the first
        self.push_s = 0.0
        #: costs of the typical worker, as of the last group of pushes; None if steps are neither added nor gathered
        self._typical = self._typical_costs()
        #: vertices of a typical worker's batch whose step is added, as of the last reply; 0: replicas are averaged
        self.added = 0

    def merged(self, pushes: int, seconds: float) -> None:
        """Record the CPU seconds of merging a group of pushes. The first group sets the cost, so that its own replies
        use it."""
        self._drift = self._merger.drift
        self._typical = self._typical_costs()
        if pushes and self.push_s == 0.0:
            self.push_s = seconds / pushes

    def answered(self, pushes: int, seconds: float) -> None:
        """Record the CPU seconds of a group of pushes with their replies."""
        seconds, self._ending_s = seconds + self._ending_s, 0.0 if pushes else self._ending_s
        if pushes:
            each_s = seconds / pushes
            self.push_s = each_s if self.push_s == 0 else 0.8 * self.push_s + 0.2 * each_s

    def ended_round(self, seconds: float) -> None:
        """Record the CPU seconds of the end of a round and its replies, which are a cost of pushes."""
        self._ending_s += seconds

    def of(self, pending: PendingReply) -> Pace:
        """Return the pace that a reply gives a worker."""
        live, compress = max(1, self._leases.live), self.sizes.compress
        if pending.paced_for != live:
            self.choose(pending)
        assignment = pending.record.assignment
        every, added = assignment.push_every, assignment.push_every if assignment.max_added else 0
        credited, total = self._ledger.credited, self._leases.epochs.total
        every_s, per_epoch = push_at_least_s(live, self.push_s), self._leases.epochs.vertex_count
        if gathered := assignment.is_gathered and self.rounds.interval_s > 0:
            every, every_s = NO_PUSH - 1, self.rounds.due_in_s(pending.record)
        if self.push_s == 0.0 and every_s > MAX_PUSH_INTERVAL_S and self.sizes.push_every is None and not self._can_add:
            every = NO_PUSH - 1  # the seconds of an interval cannot be turned into vertices yet, so the clock decides
        return Pace(live, credited, total, every, compress, every_s, per_epoch, added, assignment.others, gathered)

    def choose(self, pending: PendingReply) -> None:
        """Choose the pace of a worker from now on. It is set in the worker's record, and recorded if it changed."""
        pending.paced_for = max(1, self._leases.live)
        record, assignment = pending.record, pending.record.assignment
        choice, reason = choose_pace(self.facts(record, pending.paced_for))
        self.added, assignment.others, assignment.is_gathered = choice.added, choice.others, choice.round_s > 0
        self.rounds.set_interval(choice.round_s, 0.0 if self._typical is None else self._typical.delay_s)
        every, added = choice.push_every, self.added > 0
        if (every, added) != (assignment.push_every, assignment.max_added > 0):
            assignment.push_every = every
            assignment.max_added = (self._program.shape.batch or 1) if added else 0
            self._ledger.worker_push_interval(record.name, every, reason)

    def alone(self) -> PaceFacts | None:
        """Return the facts of a worker on an average machine, as if it were alone; None while it is open whether steps
        are added, because costs are not measured yet."""
        measures, is_open = self._leases.sizing.measures, self._can_add and self.sizes.push_every is None
        if is_open and None in (measures.push_s(), measures.speeds.mean):
            return None
        return self.facts(WorkerRecord(""), 1)

    def facts(self, record: WorkerRecord, live: int) -> PaceFacts:
        """Return the facts that decide the pace of a worker among `live` workers."""
        shape, sizing = self._program.shape, self._leases.sizing
        # Until the worker has measured its own cost, the master's is used: both touch every byte of a push.
        push_s = (sizing.push_s(record) or self.push_s) + self.push_s
        return PaceFacts(
            live,
            shape.batch or 1,
            self._program.min_target_batch,
            keeps_rate=shape.keeps_rate,
            speed=sizing.rate(record) or 0.0,
            push_s=push_s,
            budget=self.sizes.push_budget,
            weight=self._weight,
            drift=self._drift,
            merging_s=merging_s(live, self.push_s),
            max_interval_s=sizing.max_interval_s(record),
            asked=self.sizes.push_every,
            typical=self._typical,
            adds=self._can_add,
            gathers=self.rounds.used,
        )

    def _typical_costs(self) -> TypicalCosts | None:
        """Return the measured costs of the typical worker, None if steps are neither added nor gathered."""
        if not (self._can_add or self.rounds.used):
            return None
        measures = self._leases.sizing.measures
        push_s = measures.typical("pushes") or self.push_s
        return TypicalCosts(measures.speeds.mean or 0.0, push_s + self.push_s, measures.typical("travels"))


class Lacking(NamedTuple):
    """Module vertices that a worker's leases touch, and which of them the worker has."""

    #: vertices that its leases touch
    touched: Touched
    #: version in which the worker has those that are not `fresh`
    version: int
    #: those of which the worker has no replica
    fresh: Touched
    #: vertices of which the worker has copies
    copied: Touched
    #: version of these copies; -1 without any
    copies: int


class Replies:
    """Composes the reply to each worker."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        leases: Leases,
        pace: PushPace,
        moments: SharedMoments,
        trust: Trust,
        sender: ReplySender,
        added: frozenset[str] = frozenset(),  # types whose fields all have the rule `add`
    ) -> None:
        self._spec = spec
        self._store = store
        self._leases = leases
        self._pace = pace
        self._moments = moments
        self._row_supply = RowSupply(spec, store, leases, added)
        self._trust = trust
        self.sender = sender

    def send(self, pending: PendingReply, *, leave: bool) -> None:
        """Reply to a worker; `leave` tells it that the run has no more work."""
        sync, record = pending.sync, pending.record
        version, pace, lacking, supply = self._store.replica.version, self._pace.of(pending), ReplicaPart(), Supply({})
        if pending.is_dropping:
            record.held.rows.clear()
        elif self._store.replica.state:
            supply = self._row_supply.supply(pending)
            lacks = self._lacking(pending)
            lacking = replace(
                self._store.replica.outgoing(*lacks),
                rows=supply.rows,
                changed=supply.changed,
                moments=self._new_moments(pending, lacks),
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
            gathered=pending.gathered,
            round=self._pace.rounds.number,
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
            held_s=pending.held_s,
            process=sync.process,
            stored=None if stored is None else stored[0],
        )
        self.sender.send(pending, reply, lacking)

    def _lacking(self, pending: PendingReply) -> Lacking:
        """Return what a worker has of the module vertices that its leases touch."""
        sync, record, grant = pending.sync, pending.record, pending.grant
        # The worker has received the replies of the leases that it names. Any other reply may be lost.
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
        # Until its turn comes, a worker still names a lease that the master has ended. Replies bring nothing for such a
        # lease, so from now on its vertices are older than the version that the worker reports.
        current = {*held, *pushed}
        record.held.replicas_of = {
            number: lease for number, lease in record.held.replicas_of.items() if number in current
        }
        fresh = touched if not self._store.ledger.has_version(sync.have) else without(touched, has)
        if copied is not None and sync.push is None:
            record.held.replicas_of[copied.id] = copied  # this reply may be lost, so it stays
        if grant is not None:
            record.held.replicas_of[grant.id] = grant
        if copies is None or copied is None:
            return Lacking(touched, version, fresh, {}, -1)
        return Lacking(touched, version, fresh, self._modules(copied), copies.version)

    def _new_moments(self, pending: PendingReply, lacking: Lacking) -> dict[str, Array]:
        """Return the shared moments of the module vertices that are new to a worker, for its optimisers."""
        if pending.record.moments.tainted:
            return {}
        touched = without(lacking.fresh, lacking.copied)
        return self._moments.of([(name, index) for name, ids in touched.items() for index in ids.tolist()])

    def _modules(self, lease: LeaseState) -> Touched:
        """Return the module vertices that a lease's chunk touches."""
        arrays = self._store.replica.state.arrays
        return {type_name: ids for type_name, ids in lease.cut.touched.items() if type_name not in arrays}

    @cached_property
    def _short(self) -> frozenset[str]:
        """Names of tensors that travel in bfloat16: only those that are sent as steps, so that rounding never enters
        the replica."""
        if self._pace.sizes.compress_down != BFLOAT16:
            return frozenset()
        types = {table.type.name: table.type for table in self._spec.graph.replicated}
        return frozenset(
            name
            for key, vertex in self._store.replica.state.modules.items()
            for name, tensor in vertex.tensors.items()
            if tensor.dtype == np.float32 and travels_as_step(types[key[0]], name, tensor)
        )
