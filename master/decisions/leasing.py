"""Which range is leased next, how large chunks are, and where a straggler's lease is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Span:
    """Positions [start, stop) of an epoch that nobody holds; `tries` counts the failures of f in it."""

    epoch: int
    start: int
    stop: int
    tries: int = 0

    @property
    def count(self) -> int:
        return self.stop - self.start


class LeaseRow(NamedTuple):
    """An open lease. Positions [start, stop) of `epoch`; credited up to `upto` by `sequence` pushes."""

    id: int
    term: int
    epoch: int
    start: int
    stop: int
    upto: int
    worker: str
    sequence: int = 0
    tries: int = 0
    trained: int = 0  # vertices trained under it as far as is known, credited or not
    version: int | None = None  # of its last credit

    @property
    def left(self) -> int:
        return self.stop - self.upto


@dataclass(frozen=True)
class Holding:
    """An open lease as far as cutting it matters: `upto` is credited; `rate` is its worker's vertices per second."""

    lease: int
    upto: int
    stop: int
    rate: float


SHARE = 8  # chunks a worker gets per epoch while nothing better is known of lifetimes
SMALLEST = 4  # batches; below that the round trip is felt


def chunk_size(left: int, workers: int, batch: int, *, wanted: int | None, per_epoch: int) -> tuple[int, str]:
    """Vertices of the next chunk, in whole batches, and why.

    `left` vertices of the epoch are not leased yet. By default a worker gets an eighth of its share of the epoch; at
    the end chunks shrink to half of what is left per worker (factoring), so that the last wave does not wait for one
    worker.
    """
    usual = wanted if wanted is not None else max(SMALLEST * batch, per_epoch // (max(1, workers) * SHARE))
    tail = max(SMALLEST * batch, -(-left // (2 * max(1, workers))))
    chosen, reason = (usual, "asked for" if wanted else f"1/{SHARE} of a worker's share of the epoch")
    if tail < usual and workers > 1:
        chosen, reason = tail, f"the epoch ends: half of {left:,} left among {workers} workers"
    whole = -(-chosen // batch) * batch
    if left - whole < batch:  # do not leave less than a batch behind
        whole = left
    return min(whole, left), reason


def choose_span(spans: Sequence[Span], newest_epoch: int, hoped: Sequence[Span] = ()) -> tuple[Span | None, str]:
    """The span to lease from: the oldest epoch first, and in it what came back from a lost lease before what is
    untouched; but last what is `hoped` for, because a worker that is started again may bring it trained.

    `spans` are in the order of epoch and start; those of epochs after `newest_epoch` must wait (for a barrier).
    """
    if not spans:
        return None, "everything is leased"

    def may_come(span: Span) -> bool:
        return any(h.epoch == span.epoch and h.start < span.stop and span.start < h.stop for h in hoped)

    last: Span | None = None  # what is hoped for, of the oldest epoch that has anything
    for span in spans:
        if span.epoch > newest_epoch or (last is not None and span.epoch > last.epoch):
            break
        if not may_come(span):
            return span, "the first that nobody holds"
        last = last or span
    if last is not None:
        return last, "it was hoped for, and nothing else is left"
    return None, f"epoch {newest_epoch + 1} waits for the one before"


def cut(holdings: Sequence[Holding], batch: int, push_every: int) -> tuple[tuple[int, int] | None, str]:
    """((lease, new stop), reason) of the lease to cut for a worker that would otherwise idle, None when it does not
    pay.

    What the holder trains before it hears of the cut must stay within its part: at least two push intervals stay with
    it, and at least as much must be won.
    """
    margin = -(-2 * max(push_every, batch) // batch) * batch
    worth = [(h.stop - h.upto) / max(h.rate, 1e-9) for h in holdings]
    if not holdings or max(worth) <= 0:
        return None, "nothing is leased"
    slowest = holdings[worth.index(max(worth))]
    left = slowest.stop - slowest.upto
    if left < 2 * margin:
        return None, f"the slowest lease has {left} vertices left: not worth a cut"
    keep = left // 2 // batch * batch  # at least the margin, which is whole batches too
    return (slowest.lease, slowest.upto + keep), f"lease {slowest.lease} has {left} vertices left while a worker idles"
