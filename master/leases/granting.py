"""One decision: what a worker that asks for work is leased.

`Leases` gathers what it is decided by, once, and does what comes of it. The range that comes next is a fact here:
`policy.choose_span` has chosen it among those that are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from master.leases import policy
from master.leases.affinity import PartChoice, helper_size, settles
from master.leases.policy import ChunkFacts, SpeedFacts
from master.state.spans import Span

MAX_LEASES_PER_WORKER = 2  # leases of one worker: it works on one, and one comes ahead


class FreeRange(NamedTuple):
    """The range that is leased from next, and `why`.

    Of its epoch so many vertices are `uncredited`, and `own` of these are in leases that the worker holds; it is
    `alone` where nobody else holds any. `home` is there where vertices are placed.
    """

    span: Span
    why: str
    chunk: ChunkFacts
    speeds: SpeedFacts
    uncredited: int
    own: int
    alone: bool
    home: PartChoice | None = None


@dataclass(frozen=True)
class GrantFacts:
    """What a worker has that asks for a lease, and what there is for it.

    It `names` so many leases, and `holds` so many by the ledger. It may wait for the others until `idle_until_s`, None:
    it did not wait yet. It may be `assigned` to a range, for a reason. Otherwise `ground` is what is free for it, or
    why nothing is; None where nobody looked, because its hands are full.
    """

    now: float
    names: int
    holds: int
    idle_until_s: float | None
    assigned: tuple[Span, str] | None = None
    ground: FreeRange | str | None = None


def is_full(names: int, holds: int, *, ahead: bool, early: bool) -> bool:
    """Whether a worker gets nothing more, whatever is free. It may have one lease `ahead` of what it works on, unless
    that is too `early` still."""
    return (names > 0 and not ahead) or early or holds >= MAX_LEASES_PER_WORKER


class Grant(NamedTuple):
    """The first `size` vertices of a span are leased, or about so many; none where there is no span.

    The worker `settles` in a part, or it is left without work until `idle_until_s`, or it `should_steal`:
    it would idle, so a straggler may be holding what it could train.
    """

    span: Span | None = None
    size: int = 0
    settles: int | None = None
    idle_until_s: float | None = None
    should_steal: bool = False


def grant(facts: GrantFacts) -> tuple[Grant, str]:
    """Return what a worker is leased, and why that, or why nothing."""
    if facts.assigned is not None:
        span, reason = facts.assigned
        if facts.names or facts.holds:
            return Grant(), "it trains a range afresh next, for a spot check"
        return Grant(span, span.count), reason
    ground = facts.ground
    if ground is None:
        return Grant(), "its hands are full"
    if isinstance(ground, str):
        return Grant(should_steal=not facts.names), ground
    size, reason = policy.chunk_size(ground.chunk)
    asked = ground.chunk.wanted is not None
    if not asked:
        most, slow = _most(ground)
        if most is not None and most < size:
            until_s = facts.idle_until_s
            if until_s is None:
                until_s = facts.now + policy.idle_s(ground.uncredited, ground.speeds.total)
            if most >= 1:
                size, reason = most, slow
            elif facts.now < until_s:
                return Grant(idle_until_s=until_s), "the others do the rest"
            else:
                reason = "it is slow, but the others have not done the rest in the time that they said they need"
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
    """What a worker can train of an epoch while the others train the rest of it; None for no limit."""
    speeds, own = ground.speeds, ground.own
    if ground.alone:
        return None, "nobody else is at work"
    if speeds.rate is None:
        return None, "it has not trained yet"
    left, batch = ground.uncredited - own, ground.chunk.batch
    return policy.most(left, speeds.rate, speeds.others, speeds.others_rate, batch, held=own)
