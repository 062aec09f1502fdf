"""Partition affinity: leases each worker ranges of one part of a placed graph, the part whose rows it already has.

A worker whose own part is used up gets ranges of the part that shares most rows with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from master.leases.policy import MIN_CHUNK_BATCHES, choose_span
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.ledger import Ledger
from master.store.spec import SavedPlacement


@dataclass(frozen=True)
class PartFacts:
    """Input of the choice among parts. Each sequence has one entry per part."""

    own: int | None  # the worker's home part; None for a new worker
    others: Sequence[int]  # other workers at home in the part
    left: Sequence[int]  # vertices of the part that are not leased
    near: Sequence[int]  # bytes of rows that the part shares with `own`


def rank_parts(facts: PartFacts) -> list[int]:
    """Return the parts, best first.

    A worker stays in its own part. When nothing is left there, it goes to the nearest part (most rows in common) that
    has no worker; if there is none, to the nearest part. A new worker goes to the part without a worker that has the
    most left; if there is none, to the part with the most left per worker.
    """
    others, left = facts.others, facts.left
    parts = range(len(others))
    if facts.own is None:
        return sorted(parts, key=lambda p: (not left[p], others[p] > 0, -left[p] / (others[p] + 1), p))
    return sorted(parts, key=lambda p: (p != facts.own, others[p] > 0, -facts.near[p], p))


def why(facts: PartFacts, part: int) -> str:
    """Return the reason for leasing a worker vertices of a part."""
    if facts.own is None:
        return f"part {part}, which has the most left {'per worker' if facts.others[part] else 'and no worker'}"
    if part == facts.own:
        return f"its own part {part}"
    others = "which others work on" if facts.others[part] else "which no other worker works on"
    return f"part {part}, {others}, the nearest to its own"


def settles(facts: PartFacts, part: int) -> bool:
    """Return whether a part becomes the home of a worker that gets a lease there; otherwise it only helps there.

    A worker moves only when its own part is used up, and only to a part with fewer workers. So workers that help at
    the end of an epoch return to the part whose rows they have.
    """
    if facts.own is None:
        return facts.others[part] == min(facts.others)
    if facts.left[facts.own]:
        return False
    return facts.others[part] == 0 or facts.others[part] < facts.others[facts.own]


def helper_size(size: int, free: int, others: int, batch: int) -> tuple[int, str | None]:
    """Return (chunk size, reason) for a worker that helps in a part of which `free` vertices are left and where
    `others` workers are at home. The reason is None if `size` stays.

    A helper gets at most an equal share in whole batches, because it must fetch rows that the others already have.
    """
    share = max(MIN_CHUNK_BATCHES * batch, -(-free // ((others + 1) * batch)) * batch)
    return (share, f"an equal share with the {others} at home there") if others and share < size else (size, None)


def spans_by_part(spans: Sequence[Span], borders: Sequence[int], order: Sequence[int]) -> Iterator[Span]:
    """Yield spans by epoch, and within an epoch by part in the given order. Part p begins at borders[p].

    `spans` are sorted by (epoch, start), and none crosses a border, so each part is found by bisection.
    """
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
    """The part that a range is leased from, and the facts that it was chosen by."""

    facts: PartFacts
    part: int


class PartitionAffinity:
    """Chooses parts for the workers of one run. A choice costs O(parts), however many spans are free."""

    def __init__(self, placement: SavedPlacement, ledger: Ledger, workers: WorkerTable) -> None:
        self._parts = placement.parts
        self._borders: list[int] = placement.parts.offsets.tolist()
        self._shared: list[list[int]] = placement.shared.tolist()
        self._ledger = ledger
        self._workers = workers

    def choose(
        self, record: WorkerRecord, newest_epoch: int, reserved: Sequence[Span], allowed: Callable[[Span], bool]
    ) -> tuple[Span | None, str, PartChoice | None]:
        """Return (span to lease from, reason, chosen part): as `choose_span`, but within an epoch the parts come in
        the order of `rank_parts`."""
        others = self._workers.others_by_part(record, self._parts.count)
        near = self._shared[record.assignment.part or 0]  # for a new worker `rank_parts` ignores `near`
        facts = PartFacts(record.assignment.part, others, self._ledger.free_spans.left(), near)
        spans = spans_by_part(self._ledger.spans, self._borders, rank_parts(facts))
        span, reason = choose_span(spans, newest_epoch, reserved, allowed)
        if span is None:
            return None, reason, None
        part = self._parts.part_of(span.start)
        return span, f"{reason} in {why(facts, part)}", PartChoice(facts, part)

    def recall(self, lease: LeaseState) -> None:
        """Restore the home part of a worker from a lease that an earlier master granted."""
        record = self._workers.get(lease.worker)
        if record is not None:
            self._workers.assign_part(record, self._parts.part_of(lease.start))
