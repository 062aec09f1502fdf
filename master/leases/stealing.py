"""Work stealing: takes part of a straggler's lease, or all of its uncredited rest, for a worker that would idle.

`TakenRanges` counts how often ranges were taken from a straggler or from a silent worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sortedcontainers import SortedDict

from gridml.carriers.base import MasterMailboxes
from master.leases import policy
from master.leases.epochs import Epochs
from master.leases.policy import Holding
from master.leases.sizing import ChunkSizing
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import EventFacts


class TakenRanges:
    """Ranges that were taken from their holders, and how often. Finding m of n ranges costs O(m + log n)."""

    def __init__(self) -> None:
        self._ranges: dict[int, SortedDict] = {}  # by epoch: start -> (stop, times); no two overlap

    @property
    def epochs(self) -> list[int]:
        """Epochs in which ranges were taken."""
        return list(self._ranges)

    def add(self, span: Span, times: int) -> None:
        """Record that a range was taken `times` times in all; replaces the counts of its parts."""
        if span.count <= 0:
            return
        met = self._met(span)
        ranges = self._ranges.setdefault(span.epoch, SortedDict())
        for start, stop, before in met:
            del ranges[start]
            if start < span.start:
                ranges[start] = span.start, before
            if stop > span.stop:
                ranges[span.stop] = stop, before
        ranges[span.start] = span.stop, times

    def times(self, span: Span) -> int:
        """Return the largest count of any part of a range."""
        return max((times for _, _, times in self._met(span)), default=0)

    def drop(self, epoch: int) -> None:
        """Drop an epoch, if it is known."""
        self._ranges.pop(epoch, None)

    def _met(self, span: Span) -> list[tuple[int, int, int]]:
        """Return (start, stop, times) of the ranges that overlap a span, in order."""
        ranges = self._ranges.get(span.epoch)
        if ranges is None or span.count <= 0:
            return []
        first = max(0, ranges.bisect_right(span.start) - 1)  # the last range that begins before may reach into the span
        met = []
        for start in ranges.islice(first):
            if start >= span.stop:
                break
            stop, times = ranges[start]
            if stop > span.start:
                met.append((start, stop, times))
        return met


# Seconds between two searches that find nothing. A search costs a few tenths of a millisecond, whatever the number of
# leases, so even 10,000 idle workers together take a few hundredths of the master's time.
LOOK_S = 0.01
End = Callable[[LeaseState, float, str], None]  # (lease, time in seconds, reason)


class WorkStealing:
    """Finds stragglers among the leases of one run. Methods must be called inside the ledger's transaction."""

    def __init__(
        self,
        epochs: Epochs,
        ledger: Ledger,
        workers: WorkerTable,
        sizing: ChunkSizing,
        mailboxes: MasterMailboxes,
        events: Events,
        reassign: End,
    ) -> None:
        self._epochs = epochs
        self._ledger = ledger
        self._workers = workers
        self._sizing = sizing
        self._mailboxes = mailboxes
        self._events = events
        self._reassign_lease = reassign
        self._ranges = TakenRanges()
        for span, times in ledger.reassigned_ranges():
            self._ranges.add(span, times)
        for lease in ledger.leases:
            self._recall(lease)
        self._look_again_s = 0.0  # no search before this time

    def steal(self, record: WorkerRecord, batches: tuple[int, int], now: float) -> bool:
        """Take part or all of a straggler's lease for an idle worker; return whether anything was freed.

        `batches` are the vertices in a batch of a worker that trains alone, and in a batch of each worker that holds a
        lease now.
        """
        if now < self._look_again_s:
            return False
        holdings = self._look(record, now)
        if self._cut(holdings, record, batches, now) or self._reassign(holdings, record, now):
            return True
        self._look_again_s = now + LOOK_S
        return False

    def grant(self, lease: LeaseState, now: float) -> None:
        """Record a new lease, and how often its range was reassigned before."""
        lease.since_s = now
        self._recall(lease)
        self.place(lease, now)

    def credit(self, lease: LeaseState, now: float) -> None:
        """Restart the clock of all leases of a worker when a push is merged: the worker trains them in turn, so its
        other leases could not have been credited earlier."""
        for held in self._ledger.leases.of(lease.worker).values():
            held.since_s = now

    def place(self, lease: LeaseState, now: float) -> None:
        """Insert a lease into the order of expected completion."""
        self._ledger.leases.expect(lease, now + policy.expected_s(self._holding(lease, now)))

    def _recall(self, lease: LeaseState) -> None:
        lease.times_reassigned = self._ranges.times(Span(lease.epoch, lease.start, lease.stop))

    def _cut(self, holdings: Sequence[Holding], record: WorkerRecord, batches: tuple[int, int], now: float) -> bool:
        chosen, reason = policy.cut(holdings, *batches, self._sizing.rate(record))
        if chosen is None:
            return False
        lease = self._ledger.leases[chosen[0]]
        stop = self._epochs.order(lease.epoch).boundary(chosen[1])
        if stop >= lease.stop:
            return False
        self._ledger.cut(lease, stop)
        self._events.record("cut", _facts(lease), f"{lease.worker}: {reason}; it keeps {lease.left:,}", quiet=True)
        self.place(lease, now)
        return True

    def _reassign(self, holdings: Sequence[Holding], record: WorkerRecord, now: float) -> bool:
        rate, delay = self._sizing.rate(record), self._sizing.delay(record)
        if rate is None:
            return False
        # Without heartbeats this is too pessimistic about the holders, so the choice is checked again below.
        number, _ = policy.reassign(holdings, rate, delay)
        if number is None:
            return False
        lease = self._ledger.leases[number]
        heartbeat = self._mailboxes.heartbeat(lease.worker)  # for this lease only: it may be a file on a remote disk
        at = heartbeat.upto if heartbeat is not None and heartbeat.lease == lease.id else None
        number, reason = policy.reassign([replace(h, at=at) for h in holdings if h.lease == number], rate, delay)
        if number is None:
            return False
        self._events.record("straggler", _facts(lease), f"{lease.worker}: lease {lease.id} is {reason}", quiet=True)
        for epoch in self._ranges.epochs:
            if self._ledger.is_epoch_complete(epoch):
                self._ranges.drop(epoch)
        self._ranges.add(lease.rest, lease.times_reassigned + 1)
        self._reassign_lease(lease, now, reason)
        return True

    def _look(self, record: WorkerRecord, now: float) -> list[Holding]:
        """Return a few leases of other workers, among them those that are most overdue or farthest from done.

        The expected ends of these leases are updated, so they can move in the order, and the next search sees others.
        Leases of ranges that this worker must not get are left out.
        """
        leases = self._ledger.leases.steal_candidates(self._ledger.leases.of(record.name))
        holdings = [self._holding(lease, now) for lease in leases]
        for lease, holding in zip(leases, holdings, strict=True):
            self._ledger.leases.expect(lease, now + policy.expected_s(holding))
        return [
            holding
            for lease, holding in zip(leases, holdings, strict=True)
            if self._workers.may_lease(record, lease.failed, now)
        ]

    def _holding(self, lease: LeaseState, now: float) -> Holding:
        """Return the facts of an open lease; its holder trains leases in the order of their grants."""
        record, before = self._workers.of(lease.worker), 0
        for other in self._ledger.leases.of(lease.worker).values():
            if other.id == lease.id:
                break
            before += other.left
        rate = self._sizing.rate(record) or 1.0
        if lease.since_s is None:
            lease.since_s = now
        delay, interval = self._sizing.delays(record, now)[0], self._sizing.interval(record)
        return Holding(
            lease.id,
            lease.upto,
            lease.stop,
            rate,
            interval,
            now - lease.since_s,
            before=before,
            delay_s=delay.of(before + lease.left, rate, interval),
            times_reassigned=lease.times_reassigned,
            travel_s=delay.travel_s,
            failures=len(lease.failed),
        )


def _facts(lease: LeaseState) -> EventFacts:
    return {"worker": lease.worker, "lease": lease.id, "epoch": lease.epoch + 1, "left": lease.left}
