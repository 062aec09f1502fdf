"""Grant decision: the lease, if any, for a worker that asks for work.

`Leases` collects the facts and applies the decision. The range to lease from is one of the facts: it was chosen by
`policy.choose_span`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from master.leases import policy
from master.leases.affinity import PartChoice, helper_size, settles
from master.leases.policy import ChunkFacts, SpeedFacts
from master.state.spans import Span

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
