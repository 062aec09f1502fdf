"""The part of a placed graph that each worker works on.

A worker is leased its own part next, whose rows it has, or else one that is near.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from master.leases.policy import SMALLEST, choose_span
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.ledger import Ledger
from master.store.spec import SavedPlacement


@dataclass(frozen=True)
class PartFacts:
    """What the choice among parts is made by, all of it by part.

    `own` is the part that the worker is at home in, None for a newcomer; `others` are the other workers at home in
    each, `left` the vertices in each that nobody holds, and `near` the bytes of rows that each shares with `own`.
    """

    own: int | None
    others: Sequence[int]
    left: Sequence[int]
    near: Sequence[int]


def rank_parts(facts: PartFacts) -> list[int]:
    """Return the parts, the best for the worker first.

    It stays in its own part. When nothing is left there it goes to the nearest part, first of all to one that nobody
    works on. A newcomer takes up such a part, too, if anything is left there, and there the most; otherwise it goes to
    the part with the most left for each that would be at work on it.
    """
    others, left = facts.others, facts.left
    parts = range(len(others))
    if facts.own is None:
        return sorted(parts, key=lambda p: (not left[p], others[p] > 0, -left[p] / (others[p] + 1), p))
    return sorted(parts, key=lambda p: (p != facts.own, others[p] > 0, -facts.near[p], p))


def why(facts: PartFacts, part: int) -> str:
    """Say why a worker gets vertices of a part."""
    if facts.own is None:
        return f"part {part}, which has the most left {'for each' if facts.others[part] else 'and nobody works on'}"
    if part == facts.own:
        return f"its own part {part}"
    others = "which others work on" if facts.others[part] else "which nobody works on"
    return f"part {part}, {others}, the nearest to its own"


def settles(facts: PartFacts, part: int) -> bool:
    """Whether a worker that is leased from a part is at home there from now on, or only helps.

    It leaves its own part only when nothing is left of that, for one without a worker or with fewer of them: helpers at
    an epoch's end go back to what they know. Newcomers settle where the fewest are.
    """
    if facts.own is None:
        return facts.others[part] == min(facts.others)
    if facts.left[facts.own]:
        return False
    return facts.others[part] == 0 or facts.others[part] < facts.others[facts.own]


def helper_size(size: int, free: int, others: int, batch: int) -> tuple[int, str | None]:
    """Return how many of `free` vertices are leased to a worker that only helps `others` who are at home in their part,
    where it would get `size` otherwise, and why fewer, None if not: an equal share, in whole batches, and no less than
    the fewest that a chunk has."""
    share = max(SMALLEST * batch, -(-free // ((others + 1) * batch)) * batch)
    return (share, f"an equal share with the {others} at home there") if others and share < size else (size, None)


def spans_by_part(spans: Sequence[Span], borders: Sequence[int], order: Sequence[int]) -> Iterator[Span]:
    """Yield spans epoch by epoch, and in each by parts in this order: part p begins at borders[p]. No span crosses a
    border; they are sorted by epoch and start, and found by bisection."""
    at = 0
    while at < len(spans):
        epoch = spans[at].epoch
        for part in order:
            stop = borders[part + 1]
            found = bisect_left(spans, (epoch, borders[part]), key=_place)
            while found < len(spans) and spans[found].epoch == epoch and spans[found].start < stop:
                yield spans[found]
                found += 1
        at = bisect_left(spans, (epoch + 1, 0), key=_place)


def _place(span: Span) -> tuple[int, int]:
    return span.epoch, span.start


class PartChoice(NamedTuple):
    """How a worker stands to the `part` that it is leased from."""

    facts: PartFacts
    part: int


class PartitionAffinity:
    """The parts of one run and its workers. A choice costs as much as there are parts, however many spans are free."""

    def __init__(self, placement: SavedPlacement, ledger: Ledger, workers: WorkerTable) -> None:
        self._parts = placement.parts
        self._borders: list[int] = placement.parts.offsets.tolist()
        self._shared: list[list[int]] = placement.shared.tolist()
        self._ledger = ledger
        self._workers = workers

    def choose(
        self, record: WorkerRecord, newest_epoch: int, reserved: Sequence[Span], allowed: Callable[[Span], bool]
    ) -> tuple[Span | None, str, PartChoice | None]:
        """Return (the span to lease to a worker from, why, how it stands to the part of that): as `choose_span` does,
        but in each epoch the parts in the order that is best for it."""
        others = self._workers.others_by_part(record, self._parts.count)
        near = self._shared[record.assignment.part or 0]  # which does not matter to a newcomer
        facts = PartFacts(record.assignment.part, others, self._ledger.free_spans.left(), near)
        spans = spans_by_part(self._ledger.spans, self._borders, rank_parts(facts))
        span, reason = choose_span(spans, newest_epoch, reserved, allowed)
        if span is None:
            return None, reason, None
        part = self._parts.part_of(span.start)
        return span, f"{reason} in {why(facts, part)}", PartChoice(facts, part)

    def recall(self, lease: LeaseState) -> None:
        """Take note of what a worker trains that an earlier master leased it."""
        record = self._workers.get(lease.worker)
        if record is not None:
            self._workers.settle(record, self._parts.part_of(lease.start))
