"""What is leased to whom: grants, ends, reservations, and how much each worker is given."""

from __future__ import annotations

from gridml.carriers.base import MasterMailboxes
from gridml.engine.pace import batch_size
from gridml.model.chunk import bytes_each
from gridml.protocol.messages import Sync
from master.leases import policy
from master.leases.chunks import Chunks
from master.leases.epochs import Epochs
from master.leases.homes import Homes
from master.leases.policy import ChunkFacts, choose_span, chunk_size
from master.leases.reclaim import Reclaim
from master.leases.sizing import ChunkSizing
from master.state.failures import Failed
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.spec import RunSpec

MOST_HELD = 2  # leases of one worker: it works on one, and one comes ahead


class Leases:
    """Leases of one run. Methods that change the ledger must be called inside its transaction."""

    def __init__(
        self, spec: RunSpec, ledger: Ledger, workers: WorkerTable, mailboxes: MasterMailboxes, events: Events
    ) -> None:
        self.epochs = Epochs(spec, ledger)
        batch, vertex_bytes = spec.program.update.window, bytes_each(spec.graph, self.epochs.driver)
        self.sizing = ChunkSizing(spec.settings, self.epochs.count, batch, vertex_bytes)
        self.chunks = Chunks(spec, self.epochs, mailboxes, self.sizing.measures.copying, ledger.path.parent / "carried")
        self._homes = None if spec.placement is None else Homes(spec.placement, ledger, workers)
        self._reclaim = Reclaim(self.epochs, ledger, workers, self.sizing, mailboxes, events, self._overtake)
        self._has_rows = any(table.type.arrays for table in spec.graph.replicated)
        self._spec = spec
        self._ledger = ledger
        self._workers = workers
        self._mailboxes = mailboxes
        self.chunk_bytes = spec.settings.chunk_bytes  # that a chunk may have at most

    @property
    def ahead(self) -> bool:
        """Whether a worker may get its next lease while it works on one."""
        return not self._spec.program.bsp

    def _early(self, record: WorkerRecord, sync: Sync) -> bool:
        """Whether a lease that would lie ready is better granted later: the rows of array fields that come with it are
        those of now. In time is with the answer to the last push but one."""
        lease = None if sync.push is None else self._ledger.leases.get(sync.push.lease)
        return self._has_rows and lease is not None and lease.left > 2 * record.assignment.push_every

    @property
    def live(self) -> int:
        """Workers that hold a lease."""
        return self._ledger.leases.holders

    def grant(
        self, record: WorkerRecord, sync: Sync, now: float, appointed: tuple[Span, str] | None = None
    ) -> LeaseState | None:
        """Return a lease for a worker that wants one, None when there is none for it, or it is avoided; leases that it
        has let go of are ended. It gets the range that it was `appointed`, with why, once it has nothing in hand."""
        avoided = now < record.faults.avoided_until_s
        record.assignment.cached = sync.cached
        again = self._let_go(sync, now, again=not avoided)
        if again is not None:
            self._ledger.worker_sent(record.name, self.chunks.refresh(again, record.assignment.cached), now)
        if again is not None or avoided or not sync.wants or sync.leaving:
            return again
        if appointed is not None:
            busy = sync.holds or self._ledger.leases.of(record.name)
            return None if busy else self._open(appointed[0], appointed[0].stop, record, now, appointed[1])
        if (sync.holds and not self.ahead) or self._early(record, sync):
            return None
        if len(self._ledger.leases.of(record.name)) >= MOST_HELD:
            return None
        span, reason = self._span(record, now)
        if span is None and not sync.holds and self._reclaim.reclaim(record, self._batches(), now):
            span, reason = self._span(record, now)
        return None if span is None else self._lease(span, record, now, reason)

    def credit(self, lease: LeaseState, now: float) -> None:
        """Take note that a push of a lease was merged."""
        self._reclaim.credit(lease, now)

    def end(
        self,
        lease: LeaseState,
        now: float,
        because: str,
        *,
        failed: Failed | None = None,
        reserved_until_s: float | None = None,
    ) -> None:
        """End a lease; what is not credited is free again.

        With `reserved_until_s` a later attempt of its job may still bring that, trained. Only where its holder was told
        nothing since: an answer without this lease's vertices would be taken for a base.
        """
        self._close(lease)
        lease.reserved_until_s = reserved_until_s
        self._ledger.end_lease(lease, now, because, failed=failed)

    def reserved(self, number: int, now: float) -> bool:
        """Whether what an ended lease left may still be brought."""
        self._ledger.leases.expire(now)
        return number in self._ledger.leases.reserved

    def take_over(self, lease: LeaseState) -> None:
        """Answer for an open lease that an earlier master granted."""
        self.chunks.publish(lease)
        self._ledger.leases.expect(lease)
        if self._homes is not None:
            self._homes.recall(lease)

    def reopen(self, lease: LeaseState, upto: int, worker: str) -> None:
        """Open an ended lease whose work up to `upto` has come after all, by `worker`, and was given to nobody else."""
        self._ledger.reopen(lease, upto, worker)
        self.chunks.survey(lease)
        self._ledger.leases.expect(lease)

    def _close(self, lease: LeaseState) -> None:
        heartbeat = self._mailboxes.heartbeat(lease.worker)
        if heartbeat is not None and heartbeat.lease == lease.id:
            lease.trained = max(lease.trained, min(heartbeat.upto, lease.stop) - lease.start)
        self.chunks.retract(lease)

    def _overtake(self, lease: LeaseState, now: float, because: str) -> None:
        self._close(lease)
        self._ledger.end_lease(lease, now, because, overtaken=True)

    def _let_go(self, sync: Sync, now: float, *, again: bool) -> LeaseState | None:
        """End the leases that a worker does not name any more; return one whose grant it never heard of, if it may have
        that `again`."""
        unheard = None
        held = self._ledger.leases.of(sync.worker)
        for lease in [lease for lease in held.values() if lease.id not in sync.holds]:
            if sync.push is not None and lease.id == sync.push.lease:
                continue
            if again and sync.wants and lease.sequence == 0 and unheard is None:
                unheard = lease  # the answer that granted it was lost
            else:
                self.end(lease, now, "the worker let go of it")
        return unheard

    def _span(self, record: WorkerRecord, now: float) -> tuple[Span | None, str]:
        """The span to lease from, and why."""

        def allowed(span: Span) -> bool:
            return self._workers.may_lease(record, span.failed, now)

        newest = self.epochs.open_next(now)
        self._ledger.leases.expire(now)
        reserved = self._ledger.leases.reserved_spans()
        if self._homes is not None:
            return self._homes.choose(record, newest, reserved, allowed)
        return choose_span(self._ledger.spans, newest, reserved, allowed)

    def _batches(self) -> tuple[int, int]:
        program = self._spec.program
        whole = program.update.window
        return whole, batch_size(whole, program.least_batch, self.live)

    def _lease(self, span: Span, record: WorkerRecord, now: float, span_reason: str) -> LeaseState | None:
        """Lease from a span as much as the worker should have, None where that is nothing."""
        size, reason = self._size(span, record, now)
        if size < 1:
            return None
        batch = self._spec.program.update.window
        if self._homes is not None:
            shared, less = self._homes.share(record, span, size, batch)
            if less is not None and self._spec.settings.chunk is None:
                size, reason = shared, less
        stop = self.epochs.order(span.epoch).boundary(min(span.start + size, span.stop))
        crumb = self._homes is not None and span.stop - stop < batch  # parts do not end with whole batches
        if crumb or self.epochs.too_few(stop, span.stop):
            stop = span.stop
        return self._open(span, stop, record, now, f"{reason}; {span_reason}")

    def _open(self, span: Span, stop: int, record: WorkerRecord, now: float, reason: str) -> LeaseState:
        lease = self._ledger.lease(span, stop, record.name, now, reason)
        self._reclaim.grant(lease, now)
        record.assignment.idle_until_s = None
        self._ledger.worker_sent(record.name, self.chunks.publish(lease, record.assignment.cached), now)
        return lease

    def _size(self, span: Span, record: WorkerRecord, now: float) -> tuple[int, str]:
        # Chunks are whole batches of the program's own size, and whole optimiser steps: a batch made smaller for many
        # workers never ends short of it.
        batch = self._spec.program.update.window
        rate, mean = self.sizing.rate(record), self.sizing.measures.speeds.mean
        delay, around_s = self._reclaim.delay(record, now)
        facts = ChunkFacts(
            self._ledger.free_spans.count(span.epoch),
            max(self.live, self._workers.asked),
            batch,
            wanted=self._spec.settings.chunk,
            per_epoch=self.epochs.count,
            speed=rate / mean if rate and mean else 1.0,
            sized=self.sizing.chunk(record),
            around=round(around_s / (delay.copy_s + 1 / rate)) if rate else 0,
            idle=round(delay.start_s / (delay.copy_s + 1 / rate)) if rate else 0,
            interval=record.assignment.push_every if self._spec.settings.push_every is None else 0,
            followed=self.epochs.followed(span.epoch),
            largest=self.sizing.largest,
        )
        size, reason = chunk_size(facts)
        if facts.wanted is not None:
            return size, reason
        most, slow = self._most(span.epoch, record, batch)
        if most is None or most >= size:
            return size, reason
        idle, why = self._may_idle(span.epoch, record, now)
        return (most, slow) if most >= 1 or idle else (size, why)

    def _may_idle(self, epoch: int, record: WorkerRecord, now: float) -> tuple[bool, str]:
        """Whether a worker that is too slow for what is left may wait until the others have done that."""
        if record.assignment.idle_until_s is None:
            speeds = self.sizing.measures.speeds
            record.assignment.idle_until_s = now + policy.idle_s(self._ledger.uncredited(epoch), speeds.total)
        if now < record.assignment.idle_until_s:
            return True, "the others do the rest"
        record.assignment.idle_until_s = None
        return False, "it is slow, but the others have not done the rest in the time that they said they need"

    def _most(self, epoch: int, record: WorkerRecord, batch: int) -> tuple[int | None, str]:
        """What a worker can train of an epoch while the others train the rest of it; None for no limit."""
        held = self._ledger.leases.of(record.name)
        if self.live == (1 if held else 0):
            return None, "nobody else is at work"
        speeds, rate = self.sizing.measures.speeds, self.sizing.rate(record)
        if rate is None:
            return None, "it has not trained yet"
        own = sum(lease.left for lease in held.values() if lease.epoch == epoch)
        uncredited = self._ledger.uncredited(epoch) - own
        others = speeds.count - (record.measured.speed is not None)
        return policy.most(uncredited, rate, others, speeds.total - (record.measured.speed or 0.0), batch, held=own)
