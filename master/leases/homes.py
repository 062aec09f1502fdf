"""Which part of a placed graph each worker is at home in, and which it is leased next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from master.decisions.leasing import Span, choose_span
from master.decisions.part_choice import PartFacts, helping, in_parts, ranked, settles, why
from master.records import LeaseState, WorkerRecord, WorkerTable
from master.store.kept_placement import KeptPlacement
from master.store.ledger import Ledger


class Homes:
    """The parts of one run and its workers. A choice costs as much as there are parts, however many spans are free."""

    def __init__(self, placement: KeptPlacement, ledger: Ledger, workers: WorkerTable) -> None:
        self._parts = placement.parts
        self._borders: list[int] = placement.parts.offsets.tolist()
        self._shared: list[list[int]] = placement.shared.tolist()
        self._ledger = ledger
        self._workers = workers

    def choose(
        self, record: WorkerRecord, newest_epoch: int, reserved: Sequence[Span], allowed: Callable[[Span], bool]
    ) -> tuple[Span | None, str]:
        """Return the span to lease to a worker from, and why: as `choose_span` does, but in each epoch the parts in the
        order that is best for it."""
        facts = self._facts(record)
        spans = in_parts(self._ledger.spans, self._borders, ranked(facts))
        span, reason = choose_span(spans, newest_epoch, reserved, allowed)
        if span is None:
            return None, reason
        return span, f"{reason} in {why(facts, self._parts.part_of(span.start))}"

    def share(self, record: WorkerRecord, span: Span, size: int, batch: int) -> tuple[int, str | None]:
        """Return how much of a span a worker gets that would get `size`, and why it is less, if it is; take note of
        where it is at home from now on."""
        part = self._parts.part_of(span.start)
        if part == record.part:
            return size, None
        facts = self._facts(record)
        if settles(facts, part):
            self._workers.settle(record, part)
            return size, None
        return helping(size, span.count, facts.others[part], batch)

    def recall(self, lease: LeaseState) -> None:
        """Take note of what a worker trains that an earlier master leased it."""
        record = self._workers.get(lease.worker)
        if record is not None:
            self._workers.settle(record, self._parts.part_of(lease.start))

    def _facts(self, record: WorkerRecord) -> PartFacts:
        others = self._workers.others_at_home(record, self._parts.count)
        near = self._shared[record.part or 0]  # which does not matter to a newcomer
        return PartFacts(record.part, others, self._ledger.free_spans.left(), near)
