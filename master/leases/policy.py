"""The policy for leases: the range that is leased next, the size of chunks, and the cut in a straggler's lease."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from master.state.failures import MAX_TRIES
from master.state.spans import Delay, Span


@dataclass(frozen=True)
class Holding:
    """An open lease as far as it matters to a worker that idles.

    `upto` is credited, since `since_s` seconds; `at` is how far its worker says that it has come since then, if it
    does. It trains `rate` vertices per second, pushes every `push_every`, each of which is answered after `travel_s`,
    and has `before` others to train first. A credit may be `delay_s` longer under way than the training takes. Its
    range was `times_reassigned` so many times before, and f failed on it for so many others.
    """

    lease: int
    upto: int
    stop: int
    rate: float
    push_every: int = 0
    since_s: float = 0.0
    at: int | None = None
    before: int = 0
    delay_s: float = 0.0
    times_reassigned: int = 0
    travel_s: float = 0.0
    failures: int = 0

    @property
    def left(self) -> int:
        return self.stop - self.upto


SHARE = 8  # chunks a worker gets per epoch while nothing better is known of lifetimes
SMALLEST = 4  # batches; below that the round trip is felt


@dataclass(frozen=True)
class ChunkFacts:
    """What the size of a worker's next chunk is decided by.

    `left` vertices of the epoch, which has `per_epoch`, are not leased yet, and `workers` share them; `batch` is the
    program's own. `wanted` is what the user asked for, `sized` what the chunk model says, with its reason. Shares are
    equal in time: `speed` is the worker's against the mean of all. `around` are the vertices that take it as long as
    what passes around a chunk, `idle` those of that in which it trains nothing else either, `interval` those between
    two of its pushes, 0 where somebody asked for these: they may be as good as none. The epoch is `followed` by another
    that is trained before this one's end. A chunk of more than `largest` vertices would be too many bytes.
    """

    left: int
    workers: int
    batch: int
    wanted: int | None
    per_epoch: int
    speed: float = 1.0
    sized: tuple[int, str] | None = None
    around: int = 0
    idle: int = 0
    interval: int = 0
    followed: bool = False
    largest: int = 2**62


class SpeedFacts(NamedTuple):
    """Vertices per second: `rate` is a worker's own, None while nobody has trained, `others_rate` that of so many
    `others` together, `total` that of all of them, as they were measured."""

    rate: float | None
    others: int
    others_rate: float
    total: float


def chunk_size(facts: ChunkFacts) -> tuple[int, str]:
    """Return the vertices of the next chunk, in whole batches, and why.

    What was asked for is taken as it is, for every worker and to the end of an epoch. Otherwise the size is as the
    chunk model has it, or an eighth of a worker's share of the epoch, more where chunks are dear to begin, but no less
    than what it pushes at once: a chunk ends with a push, which is to take no more of its time than pushes may. No
    chunk is larger than the share. Where nothing follows an epoch, chunks shrink at its end to half of what is left per
    worker (factoring), so that the last wave does not wait for one worker, but not below what passes around a chunk. No
    chunk has more bytes than it may, unless one batch has.
    """
    left, workers, batch, around = facts.left, facts.workers, facts.batch, facts.around
    if facts.wanted is not None:
        return _whole_batches(facts.wanted, left, batch), "asked for"
    share = facts.speed / max(1, workers)
    own = math.ceil(facts.per_epoch * share)
    if facts.sized is not None:
        usual, reason = max(SMALLEST * batch, facts.sized[0]), facts.sized[1]
    else:
        parts = _parts(own, facts.idle)
        usual, reason = max(
            (max(SMALLEST * batch, own // parts), f"1/{parts} of a worker's share of the epoch"),
            (facts.interval, "what it pushes at once"),
            key=lambda choice: choice[0],
        )
    bound, ends = math.ceil(left * share / 2), f"the epoch ends: half of {left:,} left among {workers} workers"
    if facts.followed:
        bound, ends = own, f"its share of {facts.per_epoch:,} among {workers} workers"
    least = max(SMALLEST * batch, around)
    chosen = usual
    if max(bound, least) < usual and workers > 1:
        chosen, reason = bound, ends
        if bound < least:
            chosen, reason = least, f"to begin and to bring fewer than {least:,} takes as long as training"
    if chosen > max(facts.largest, batch):
        chosen, reason = max(facts.largest // batch, 1) * batch, "as many bytes as a chunk may have"
    return _whole_batches(chosen, left, batch), reason


def _parts(own: int, idle: int) -> int:
    """How many chunks a worker's share of `own` vertices is cut into: eight, unless it loses more around each chunk
    than all wait at the epoch's end, which is half a chunk."""

    def worth(parts: int) -> float:
        chunk = own / parts
        return chunk / (chunk + idle) / (1 + 1 / (2 * parts))

    return max((SHARE, 4, 2, 1), key=worth)


def _whole_batches(count: int, left: int, batch: int) -> int:
    """So many vertices, up to whole batches, or all that are left where less than a batch would stay behind."""
    whole = -(-count // batch) * batch
    return left if left - whole < batch else whole


def most(
    uncredited: int, rate: float, others: int, others_rate: float, batch: int, *, held: int = 0
) -> tuple[int | None, str]:
    """Vertices that a slow worker may be given at most, in whole batches, so that an epoch does not wait for it; None
    for no limit, 0 for nothing at all.

    `uncredited` vertices of the epoch are still to be trained, by it with `rate` vertices per second and by `others`
    that train `others_rate` together. They are done with those in uncredited/others_rate seconds; if one of them took
    n vertices more, that would be n/(their mean rate) later. The worker must not need longer for n than that, beside
    the vertices that it has `held` from before.
    """
    if others < 1 or rate <= 0 or others_rate <= 0:
        return None, "nobody else is known"
    mean = others_rate / others
    if rate >= mean * (1 - 1e-9):  # by rounding equal rates differ, and below there is division by their difference
        return None, "it is as fast as the others"
    bound = max(0.0, uncredited / others_rate - held / rate) / (1 / rate - 1 / mean)
    return int(bound / batch) * batch, f"it is slow: the others have trained {uncredited:,} before it has trained more"


IDLE, IDLE_S = 3.0, 10.0


def idle_s(uncredited: int, rate: float) -> float:
    """Seconds that a slow worker may be left without work for the others, who train `rate` vertices per second as they
    say, to do what is `uncredited`: some times as long as they need. If it is not done then, they are not what they
    say, and a run must not wait for them for ever."""
    return IDLE_S + IDLE * uncredited / max(rate, 1e-9)


def choose_span(
    spans: Iterable[Span],
    newest_epoch: int,
    reserved: Sequence[Span] = (),
    allowed: Callable[[Span], bool] = lambda span: True,
) -> tuple[Span | None, str]:
    """The span to lease from: the oldest epoch first, and in it what came back from a lost lease before what is
    untouched; but last what is `reserved`, because a worker that is started again may bring it trained, or set apart.

    `spans` are in the order of epoch, and within one in that in which they are wanted, which is that of their start
    unless vertices are placed; those of epochs after `newest_epoch` must wait (for a barrier), and those that are not
    `allowed` are for other workers.
    """

    def may_come(span: Span) -> bool:
        return span.isolated or any(
            r.epoch == span.epoch and r.start < span.stop and span.start < r.stop for r in reserved
        )

    last: Span | None = None  # what is reserved, of the oldest epoch that has anything
    passed_over = waits = False
    for span in spans:
        waits = True
        if span.epoch > newest_epoch or (last is not None and span.epoch > last.epoch):
            break
        if not allowed(span):
            passed_over = True
            continue
        if not may_come(span):
            return span, "the first that nobody holds"
        last = last or span
    if last is not None:
        return (
            last,
            f"it was {'set apart' if last.isolated else 'reserved'} for another worker, and nothing else is left",
        )
    if passed_over:
        return None, "it failed on all that is left, and others may take that"
    return None, f"epoch {newest_epoch + 1} waits for the one before" if waits else "everything is leased"


def cut(
    holdings: Sequence[Holding], batch: int, push_every: int, rate: float | None = None
) -> tuple[tuple[int, int] | None, str]:
    """((lease, new stop), reason) of the lease to cut for a worker that would otherwise idle, None when it does not
    pay.

    Both parts are done at one time: that is half each, unless the `rate` of the idle worker is known, or the holder
    has something else to do first. What the holder trains before it hears of the cut must stay within its part: it has
    not been heard for a push interval, and hears of the cut with the answer to the next. So two intervals at least stay
    with it, none of which is shorter than a push's way there and back, and at least as much must be won.
    """
    worth = [(h.before + h.left) / max(h.rate, 1e-9) if h.left > 0 else 0.0 for h in holdings]
    if not holdings or max(worth) <= 0:
        return None, "nothing is leased"
    slowest = holdings[worth.index(max(worth))]
    left = slowest.left
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
    """Seconds since a lease should have been credited whole, by its worker's rate and delay from its last credit on;
    negative before that."""
    return held.since_s - held.delay_s - (held.before + held.left) / max(held.rate, 1e-9)


PATIENCE = 0.25  # of the time that a lease is late by: it is looked at again when it is so much later


def expected_s(held: Holding) -> float:
    """Seconds until a lease is expected to be credited whole. One that is late already is given a little longer, in
    proportion: so it does not hide others for ever, and is missed by no more than that when it becomes worth taking.

    Never infinite: with a delay that makes no sense, it is the time that the training takes.
    """
    late = late_s(held)
    if not math.isfinite(late):
        return (held.before + held.left) / max(held.rate, 1e-9)
    return max(-late, PATIENCE * late)


OVERTAKEN = 3.0  # times as long as another worker would take: then a lease is taken from its worker,
OVERTAKEN_S = 1.0  # if that wins so many seconds at least


def reassign(holdings: Sequence[Holding], rate: float, delay: Delay) -> tuple[int | None, str]:
    """(lease, reason) of the lease to end and to lease a second time, to a worker that would otherwise idle and trains
    `rate` vertices per second with its own `delay`; None when that does not pay.

    It begins at the last credit. The holder goes on from where it says it is; and who is late already, by what its rate
    and its delay promised, is taken to be late by as much again. So a lease that is trained to its end is left alone
    until its push is late by several travel times. What its holder pushes later is refused, so credits stay exact.

    Each time that a range is overtaken again must pay twice as well: measures may be wrong, and then every holder would
    be overtaken in turn, with its push under way. A range whose next failure may end the run stays with its holder:
    workers that take an endless f from each other would fail at nothing.
    """
    best: tuple[float, float, float, Holding] | None = None
    for held in holdings:
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
    if won_s >= OVERTAKEN_S and own_s > OVERTAKEN * _dearer(held) * another_s:
        return held.lease, f"leased a second time: {reason}"
    return None, f"lease {held.lease} stays: {reason}"


def _dearer(held: Holding) -> float:
    return math.ldexp(1.0, min(held.times_reassigned, 1000))
