"""Leases of a run: grants, ends, reservations and adoption by the next master.

`Leases` collects the facts and applies the decision. The range to lease from is one of the facts: it was chosen by
`policy.choose_span`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gridml.carriers.base import MasterMailboxes
from gridml.engine.pace import batch_size
from gridml.model.chunk import bytes_each
from gridml.protocol.messages import Sync
from master.leases import policy
from master.leases.affinity import PartChoice, PartitionAffinity, helper_size, settles
from master.leases.chunks import Chunks
from master.leases.epochs import Epochs
from master.leases.policy import ChunkFacts, SpeedFacts, choose_span
from master.leases.sizing import ChunkSizing
from master.leases.stealing import WorkStealing
from master.state.failures import Failed
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.settings import SizeSettings
from master.store.spec import RunSpec

MAX_LEASES_PER_WORKER = 2  # a worker trains one while it fetches the chunk of the next


class FreeRange(NamedTuple):
    """The range to lease from next."""

    span: Span
    why: str  # the reason for this span
    chunk: ChunkFacts
    speeds: SpeedFacts
    uncredited: int  # vertices of the epoch that are not credited
    own: int  # how many of the `uncredited` are in leases of this worker
    alone: bool  # True if no other worker holds a lease
    home: PartChoice | None = None  # only in placed runs


@dataclass(frozen=True)
class GrantFacts:
    """A worker that asks for a lease, and the work that is available for it."""

    now: float  # seconds of the run's clock
    names: int  # leases that the worker's message names
    holds: int  # leases that the worker holds by the ledger
    idle_until_s: float | None  # end of the worker's wait for faster workers; None: no wait yet
    assigned: tuple[Span, str] | None = None  # (range that the worker must train for a spot check, reason)
    ground: FreeRange | str | None = None  # str: why no range is free; None: the worker has enough leases


def is_full(names: int, holds: int, *, ahead: bool, early: bool) -> bool:
    """Return whether a worker has enough leases. With `ahead` it is allowed one more than it trains, but not too
    `early`: a grant brings rows as they are at that time, and they would be stale when they are used."""
    return (names > 0 and not ahead) or early or holds >= MAX_LEASES_PER_WORKER


class Grant(NamedTuple):
    """The outcome of a request for work."""

    span: Span | None = None  # None: no lease is granted
    size: int = 0  # vertices from the start of the span; components and batches can change it a little
    settles: int | None = None  # the part that becomes the worker's home
    idle_until_s: float | None = None  # time until which the worker is left without work
    should_steal: bool = False  # the worker would idle: try to take work from a straggler, then decide again


def grant(facts: GrantFacts) -> tuple[Grant, str]:
    """Return (grant, reason) for a worker that asks for work."""
    if facts.assigned is not None:
        span, reason = facts.assigned
        if facts.names or facts.holds:
            return Grant(), "it repeats a range next, for a spot check"
        return Grant(span, span.count), reason
    ground = facts.ground
    if ground is None:
        return Grant(), "it has enough leases"
    if isinstance(ground, str):
        return Grant(should_steal=not facts.names), ground
    size, reason = policy.chunk_size(ground.chunk)
    asked = ground.chunk.wanted is not None
    if not asked:
        most, slow = _most(ground)
        if most is not None and most < size:
            until_s = facts.idle_until_s
            if until_s is None:
                # The wait is bounded: speeds are as workers report them, and may be wrong.
                until_s = facts.now + policy.idle_s(ground.uncredited, ground.speeds.total)
            if most >= 1:
                size, reason = most, slow
            elif facts.now < until_s:
                return Grant(idle_until_s=until_s), "the other workers do the rest"
            else:
                reason = "it is slow, but the other workers did not finish in the time that they should need"
    home, settled = ground.home, None
    if home is not None and home.part != home.facts.own:
        if settles(home.facts, home.part):
            settled = home.part
        elif not asked:
            others = home.facts.others[home.part]
            size, less = helper_size(size, ground.span.count, others, ground.chunk.batch)
            reason = less or reason
    return Grant(ground.span, size, settled), f"{reason}; {ground.why}"


def _most(ground: FreeRange) -> tuple[int | None, str]:
    """Return (vertices that a worker can train while the others train the rest, or None for no limit; reason)."""
    speeds, own = ground.speeds, ground.own
    if ground.alone:
        return None, "no other worker is active"
    if speeds.rate is None:
        return None, "it has not trained yet"
    left, batch = ground.uncredited - own, ground.chunk.batch
    return policy.max_vertices(left, speeds.rate, speeds.others, speeds.others_rate, batch, held=own)


class Leases:
    """Leases of one run. Methods that change the ledger must be called inside its transaction."""

    def __init__(
        self,
        spec: RunSpec,
        sizes: SizeSettings,
        ledger: Ledger,
        workers: WorkerTable,
        mailboxes: MasterMailboxes,
        events: Events,
    ) -> None:
        self.epochs = Epochs(spec, ledger, sizes.chunk)
        batch, vertex_bytes = spec.program.shape.window, bytes_each(spec.graph, self.epochs.driver)
        many = spec.settings.facts.chunks_per_job != 1
        self.sizing = ChunkSizing(sizes, self.epochs.vertex_count, batch, vertex_bytes, many=many)
        self.chunks = Chunks(spec, self.epochs, mailboxes, self.sizing.measures.copying, ledger.path.parent / "carried")
        # Where workers wait for one another, the next mini-batch is that of the slowest part, whoever trained it last.
        placement = spec.placement if self.epochs.ticks is None else None
        self._affinity = None if placement is None else PartitionAffinity(placement, ledger, workers)
        self._stealing = WorkStealing(self.epochs, ledger, workers, self.sizing, mailboxes, events, self._reassign)
        self._has_rows = any(table.type.arrays for table in spec.graph.replicated)
        self._spec = spec
        self._ledger = ledger
        self._workers = workers
        self._mailboxes = mailboxes
        self.chunk_bytes = sizes.chunk_bytes  # upper bound for a chunk, in bytes

    @property
    def ahead(self) -> bool:
        """True if a worker can get its next lease while it trains one; not where a chunk depends on the last one, with
        BSP or finite slack."""
        return self._spec.program.consistency.grants_ahead

    def _is_early(self, record: WorkerRecord, sync: Sync) -> bool:
        """Return whether the next lease is better granted later, because rows of array fields come with a grant and
        would be stale when they are used. The reply to the last push but one is early enough."""
        lease = None if sync.push is None else self._ledger.leases.get(sync.push.lease)
        return self._has_rows and lease is not None and lease.left > 2 * record.assignment.push_every

    @property
    def live(self) -> int:
        """Workers that hold a lease."""
        return self._ledger.leases.holders

    def grant(
        self, record: WorkerRecord, sync: Sync, now: float, assigned: tuple[Span, str] | None = None
    ) -> LeaseState | None:
        """Return a lease for a worker that wants one; None if nothing is free, or the worker must not get any for now.

        Leases that the worker's message no longer names are ended first. With `assigned` (range, reason) the worker
        gets that range as soon as it holds no lease.
        """
        avoided = now < record.faults.avoided_until_s
        record.assignment.cached = sync.cached
        again = self._release_unnamed(sync, now, again=not avoided)
        if again is not None:
            self._ledger.worker_sent(record.name, self.chunks.refresh(again, record.assignment.cached), now)
            return again
        if avoided or not sync.wants or sync.leaving:
            return None
        granted, reason = grant(self._facts(record, sync, now, assigned))
        if granted.should_steal and self._stealing.steal(record, self._batches(), now):
            granted, reason = grant(self._facts(record, sync, now, assigned))
        return self._apply(granted, reason, record, now)

    def credit(self, lease: LeaseState, now: float) -> None:
        """Record that a push of a lease was merged."""
        self._stealing.credit(lease, now)

    def end(
        self,
        lease: LeaseState,
        now: float,
        because: str,
        *,
        failed: Failed | None = None,
        reserved_until_s: float | None = None,
    ) -> None:
        """End a lease and free its uncredited rest.

        Until `reserved_until_s` the rest is reserved, because the next attempt of the job can still push it.
        """
        self._close(lease)
        lease.reserved_until_s = reserved_until_s
        self._ledger.end_lease(lease, now, because, failed=failed)

    def reserved(self, number: int, now: float) -> bool:
        """Return whether the rest of an ended lease is still reserved."""
        self._ledger.leases.expire(now)
        return number in self._ledger.leases.reserved

    def adopt(self, lease: LeaseState) -> None:
        """Adopt an open lease that an earlier master granted."""
        self.chunks.publish(lease)
        self._ledger.leases.expect(lease)
        if self._affinity is not None:
            self._affinity.recall(lease)

    def reopen(self, lease: LeaseState, upto: int, worker: str) -> None:
        """Reopen an ended lease: `worker` delivered its work up to `upto`, and that range was not leased again."""
        self._ledger.reopen(lease, upto, worker)
        self.chunks.survey(lease)
        self._ledger.leases.expect(lease)

    def _close(self, lease: LeaseState) -> None:
        # The holder's last heartbeat shows work that no push brought. The report counts it as wasted.
        heartbeat = self._mailboxes.heartbeat(lease.worker)
        if heartbeat is not None and heartbeat.lease == lease.id:
            lease.trained = max(lease.trained, min(heartbeat.upto, lease.stop) - lease.start)
        self.chunks.retract(lease)

    def _reassign(self, lease: LeaseState, now: float, because: str) -> None:
        self._close(lease)
        self._ledger.end_lease(lease, now, because, reassigned=True)

    def _release_unnamed(self, sync: Sync, now: float, *, again: bool) -> LeaseState | None:
        """End the leases that a worker no longer names; return one whose grant was lost, if `again` permits it."""
        lost = None
        held = self._ledger.leases.of(sync.worker)
        for lease in [lease for lease in held.values() if lease.id not in sync.holds]:
            if sync.push is not None and lease.id == sync.push.lease:
                continue
            if again and sync.wants and lease.sequence == 0 and lost is None:
                lost = lease  # the reply that granted it was lost: the same lease again costs no second chunk
            else:
                self.end(lease, now, "the worker released it")
        return lost

    def _facts(self, record: WorkerRecord, sync: Sync, now: float, assigned: tuple[Span, str] | None) -> GrantFacts:
        names, holds, ground = len(sync.holds), len(self._ledger.leases.of(record.name)), None
        full = is_full(names, holds, ahead=self.ahead, early=self._is_early(record, sync))
        if assigned is None and not full:
            ground = self._ground(record, now)
        return GrantFacts(now, names, holds, record.assignment.idle_until_s, assigned, ground)

    def _ground(self, record: WorkerRecord, now: float) -> FreeRange | str:
        """Return the free range for a worker, or the reason why there is none. Opens the next epoch if it is due."""

        def allowed(span: Span) -> bool:
            return self._workers.may_lease(record, span.failed, now)

        newest, leases, home = self.epochs.open_next(now), self._ledger.leases, None
        leases.expire(now)
        reserved = leases.reserved_spans()
        if self.epochs.ticks is not None:
            spans, waits = self.epochs.ready(newest)
            span, why = choose_span(spans, newest, reserved, allowed)
            why = why if spans else waits
        elif self._affinity is not None:
            span, why, home = self._affinity.choose(record, newest, reserved, allowed)
        else:
            span, why = choose_span(self._ledger.spans, newest, reserved, allowed)
        if span is None:
            return why
        epoch, held = span.epoch, leases.of(record.name)
        left, workers = self._ledger.free_spans.count(epoch), max(self.live, self._workers.target)
        sized = self.sizing.facts(record, now, left, workers, followed=self.epochs.is_followed(epoch))
        own = sum(lease.left for lease in held.values() if lease.epoch == epoch)
        alone = self.live == (1 if held else 0)
        return FreeRange(span, why, *sized, self._ledger.uncredited(epoch), own, alone, home)

    def _batches(self) -> tuple[int, int]:
        program = self._spec.program
        whole = program.shape.window
        return whole, batch_size(whole, program.min_target_batch, self.live)

    def _apply(self, grant: Grant, reason: str, record: WorkerRecord, now: float) -> LeaseState | None:
        """Apply a decision; return the lease that it grants, if any."""
        if grant.span is None:
            record.assignment.idle_until_s = grant.idle_until_s or record.assignment.idle_until_s
            return None
        record.assignment.idle_until_s = None
        if grant.settles is not None:
            self._workers.assign_part(record, grant.settles)
        lease = self._ledger.lease(grant.span, self.epochs.lease_stop(grant.span, grant.size), record.name, now, reason)
        self._stealing.grant(lease, now)
        self._ledger.worker_sent(record.name, self.chunks.publish(lease, record.assignment.cached), now)
        return lease
