"""Lease policy: the next range, chunk sizes, and the work to take from stragglers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from master.state.failures import MAX_TRIES
from master.state.spans import Delay, Span


@dataclass(frozen=True)
class Holding:
    """An open lease from which an idle worker might take work."""

    lease: int
    upto: int  # credited up to this position
    stop: int
    rate: float  # vertices per second of its holder
    push_every: int = 0  # vertices between two pushes
    since_s: float = 0.0  # seconds since its last credit
    at: int | None = None  # position in the holder's last heartbeat, if any
    before: int = 0  # vertices that the holder trains before this lease
    delay_s: float = 0.0  # seconds, in addition to those of training, until all of the lease is credited
    times_reassigned: int = 0  # how often the range was taken from a holder before
    travel_s: float = 0.0  # seconds from a push to its reply
    failures: int = 0  # workers on which f failed in this range

    @property
    def left(self) -> int:
        return self.stop - self.upto


SHARE = 8  # chunks per worker and epoch while lifetimes are unknown
MIN_CHUNK_BATCHES = 4  # with fewer batches in a chunk, round trips lower the throughput


@dataclass(frozen=True)
class ChunkFacts:
    """Input of `chunk_size`. Counts are vertices."""

    left: int  # vertices of the epoch that are not leased yet
    workers: int  # number of workers that share `left`
    batch: int  # vertices in a batch of the program
    wanted: int | None  # --chunk, if given
    per_epoch: int
    speed: float = 1.0  # the worker's speed relative to the mean: shares are equal in time
    sized: tuple[int, str] | None = None  # (size, reason) by the chunk model, once lifetimes are known
    around: int = 0  # vertices that the worker could train during the overhead of one chunk
    idle: int = 0  # the part of `around` in which the worker does not train another chunk either
    #: vertices that the worker could train while the master merges one push of each worker
    merging: int = 0
    #: vertices between two pushes of the worker; 0 if the user set the interval, which may be far from the best one
    interval: int = 0
    followed: bool = False  # vertices of the next epoch can be trained before this one ends
    largest: int = 2**62  # upper bound of the chunk, from the maximum bytes of a chunk


class SpeedFacts(NamedTuple):
    """Measured speeds, in vertices per second."""

    rate: float | None  # of this worker; None until any worker has trained
    others: int  # number of other workers that were measured
    others_rate: float  # sum over the others
    total: float  # sum over all workers


def chunk_size(facts: ChunkFacts) -> tuple[int, str]:
    """Return (vertices of the next chunk in whole batches, reason).

    A size that the user asked for is taken as it is. Otherwise it is the chunk model's, or 1/8 of a worker's share of
    the epoch (more if chunks are expensive to start), bounded by the share, by bytes, and at the end of an epoch by
    factoring. It is never less than one batch.
    """
    left, workers, batch, around = facts.left, facts.workers, facts.batch, facts.around
    if facts.wanted is not None:
        return _whole_batches(facts.wanted, left, batch), "asked for"
    share = facts.speed / max(1, workers)
    own = math.ceil(facts.per_epoch * share)
    if facts.sized is not None:
        usual, reason = max(MIN_CHUNK_BATCHES * batch, facts.sized[0]), facts.sized[1]
    else:
        parts = _parts(own, facts.idle)
        usual, reason = max(
            (max(MIN_CHUNK_BATCHES * batch, own // parts), f"1/{parts} of a worker's share of the epoch"),
            # A chunk ends with a push: a smaller one would push more often than the push budget allows.
            (facts.interval, "one push interval"),
            key=lambda choice: choice[0],
        )
    # Factoring: half of what is left per worker, so that the last chunks end at about the same time.
    bound, ends = math.ceil(left * share / 2), f"the epoch ends: half of {left:,} left among {workers} workers"
    if facts.followed:
        bound, ends = own, f"its share of {facts.per_epoch:,} among {workers} workers"
    # A chunk that trains for less time than its overhead takes does not pay. Each chunk ends with a push: if chunks
    # were shorter than the merging of a push of each worker, pushes would queue up, and workers would wait for replies.
    least = max(MIN_CHUNK_BATCHES * batch, around, facts.merging)
    chosen = usual
    if max(bound, least) < usual and workers > 1:
        chosen, reason = bound, ends
        if bound < least:
            chosen, reason = least, f"the overhead of a chunk is as long as the training of {least:,}"
            if facts.merging > around:
                reason = f"a push of each worker is merged while it trains {least:,}"
    if chosen > max(facts.largest, batch):
        chosen, reason = max(facts.largest // batch, 1) * batch, "the limit on the bytes of a chunk"
    return _whole_batches(chosen, left, batch), reason


def _parts(own: int, idle: int) -> int:
    """Return the number of chunks for a worker's share of `own` vertices: fewer if the overhead of a chunk costs more
    than the wait at the end of the epoch, half a chunk on average."""

    def worth(parts: int) -> float:
        chunk = own / parts
        return chunk / (chunk + idle) / (1 + 1 / (2 * parts))

    return max((SHARE, 4, 2, 1), key=worth)


def _whole_batches(count: int, left: int, batch: int) -> int:
    """Round up to whole batches; return all that is left if less than a batch would remain."""
    whole = -(-count // batch) * batch
    return left if left - whole < batch else whole


def max_vertices(
    uncredited: int, rate: float, others: int, others_rate: float, batch: int, *, held: int = 0
) -> tuple[int | None, str]:
    """Return (maximum vertices of a slow worker's lease, in whole batches, reason): with more, the epoch would wait for
    the worker. None: no limit; 0: nothing.

    The worker trains `rate` vertices per second, `others` train `others_rate` together, and `held` vertices are in its
    leases already. Without the worker, the others need uncredited/others_rate seconds. If one of them took n vertices
    more, it would end n/(mean rate) later. The worker must train held + n vertices in that time.
    """
    if others < 1 or rate <= 0 or others_rate <= 0:
        return None, "no other worker was measured"
    mean = others_rate / others
    if rate >= mean * (1 - 1e-9):  # equal up to rounding; the bound divides by the difference
        return None, "it is as fast as the others"
    bound = max(0.0, uncredited / others_rate - held / rate) / (1 / rate - 1 / mean)
    return int(bound / batch) * batch, f"it is slow: the other workers train {uncredited:,} before it can train more"


# A slow worker waits at most IDLE times as long as the others should need, plus IDLE_S seconds.
IDLE, IDLE_S = 3.0, 10.0


def idle_s(uncredited: int, rate: float) -> float:
    """Return the maximum seconds that a slow worker is left without work while the others train `uncredited` vertices
    at `rate`. The wait is bounded because workers report rates: if these are wrong, the run must go on."""
    return IDLE_S + IDLE * uncredited / max(rate, 1e-9)


def choose_span(
    spans: Iterable[Span],
    newest_epoch: int,
    reserved: Sequence[Span] = (),
    allowed: Callable[[Span], bool] = lambda span: True,
) -> tuple[Span | None, str]:
    """Return (span to lease from, reason): the first allowed span of the oldest epoch. Spans that are `reserved` or
    kept for a spot check come last in their epoch, because another worker may still deliver them.

    `spans` are ordered by epoch, and within an epoch by preference (by start unless vertices are placed). Epochs after
    `newest_epoch` are not open yet. Spans for which `allowed` is false are left for other workers.
    """

    def may_come(span: Span) -> bool:
        return span.isolated or any(
            r.epoch == span.epoch and r.start < span.stop and span.start < r.stop for r in reserved
        )

    last: Span | None = None  # the first reserved span of the oldest epoch with free spans
    passed_over = waits = False
    for span in spans:
        waits = True
        if span.epoch > newest_epoch or (last is not None and span.epoch > last.epoch):
            break
        if not allowed(span):
            passed_over = True
            continue
        if not may_come(span):
            return span, "the first free range"
        last = last or span
    if last is not None:
        kept = "set apart" if last.isolated else "reserved"
        return last, f"it was {kept} for another worker, and nothing else is left"
    if passed_over:
        return None, "it failed on all ranges that are left, and other workers may take them"
    return None, f"epoch {newest_epoch + 1} waits for the one before" if waits else "everything is leased"


def cut(
    holdings: Sequence[Holding], batch: int, push_every: int, rate: float | None = None
) -> tuple[tuple[int, int] | None, str]:
    """Return ((lease, new stop), reason) for the lease to cut for an idle worker; None if no cut pays.

    The slowest lease is cut so that both parts end at the same time: in halves, unless the `rate` of the idle worker is
    known, or the holder has other leases to train first.
    """
    worth = [(h.before + h.left) / max(h.rate, 1e-9) if h.left > 0 else 0.0 for h in holdings]
    if not holdings or max(worth) <= 0:
        return None, "nothing is leased"
    slowest = holdings[worth.index(max(worth))]
    left = slowest.left
    # The holder learns of the cut with the reply to its next push, and its last message may be one interval old. So it
    # keeps at least two intervals, each at least as long as a round trip, and the cut must free at least as much.
    interval = max(push_every, slowest.push_every, batch, math.ceil(slowest.travel_s * slowest.rate))
    margin = -(-2 * interval // batch) * batch
    if left < 2 * margin:
        return None, f"the slowest lease has {left} vertices left: not worth a cut"
    its_rate = max(slowest.rate, 1e-9)
    share = 0.5 if rate is None else its_rate / (its_rate + max(rate, 1e-9))
    part = share * left - (1 - share) * slowest.before
    if left - part < margin:
        return None, f"the idle worker is too slow for a part of lease {slowest.lease}"
    keep = max(int(part), margin)
    return (
        (slowest.lease, slowest.upto + keep // batch * batch),
        f"lease {slowest.lease} has {left} vertices left while a worker idles",
    )


def late_s(held: Holding) -> float:
    """Return the seconds by which a lease is overdue; negative before it is due. It is due when its holder should be
    done at its rate and delay, counted from the last credit."""
    return held.since_s - held.delay_s - (held.before + held.left) / max(held.rate, 1e-9)


PATIENCE = 0.25  # an overdue lease is checked again once it is overdue by this share more


def expected_s(held: Holding) -> float:
    """Return the seconds until a lease is expected to be fully credited; always finite.

    The expected end of an overdue lease is postponed in proportion to its delay, so that the lease does not stay first
    in the order and hide others.
    """
    late = late_s(held)
    if not math.isfinite(late):  # the delay is nonsense: expect the training time alone
        return (held.before + held.left) / max(held.rate, 1e-9)
    return max(-late, PATIENCE * late)


# A lease is reassigned only if its holder needs MIN_SPEEDUP times as long as the other worker, and if that saves
# MIN_SAVED_S seconds.
MIN_SPEEDUP = 3.0
MIN_SAVED_S = 1.0


def reassign(holdings: Sequence[Holding], rate: float, delay: Delay) -> tuple[int | None, str]:
    """Return (lease, reason) for the lease to end and to grant again to an idle worker, which trains `rate` vertices
    per second with its own `delay`; None if that does not pay.

    The idle worker starts at the last credit, while the holder continues from its last heartbeat. An overdue holder is
    expected to need at least as long again as it is overdue. Its later pushes are rejected, so credits stay exact.
    """
    best: tuple[float, float, float, Holding] | None = None
    for held in holdings:
        # A range whose next failure may end the run stays with its holder. If f never ends on such a range, workers
        # would otherwise take it from one another for ever, and no failure would be counted.
        if held.left <= 0 or held.failures >= MAX_TRIES - 1:
            continue
        its_rate = max(held.rate, 1e-9)
        own_s = max((held.before + held.stop - max(held.upto, held.at or 0)) / its_rate, late_s(held))
        another_s = delay.of(held.left, rate) + held.left / max(rate, 1e-9)
        won = (own_s - another_s) / _dearer(held)
        if best is None or won > best[0]:
            best = won, own_s, another_s, held
    if best is None:
        return None, "nothing is leased"
    won_s, own_s, another_s, held = best
    reason = (
        f"its worker needs {own_s:.3g} s more for {held.left} vertices, another {another_s:.3g} s from its last credit"
    )
    if won_s >= MIN_SAVED_S and own_s > MIN_SPEEDUP * _dearer(held) * another_s:
        return held.lease, f"leased a second time: {reason}"
    return None, f"lease {held.lease} stays: {reason}"


def _dearer(held: Holding) -> float:
    # Each further reassignment of a range must pay twice as much. Measures may be wrong, and then every holder would
    # lose its range while its push is under way.
    return math.ldexp(1.0, min(held.times_reassigned, 1000))
