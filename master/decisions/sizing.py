"""How much work a worker is given at once and how often it pushes, from what the run has seen of its workers.

The sizes are seconds of training, so that a machine four times as fast gets four times the vertices. While nothing is
known, chunks are an eighth of a worker's share of the epoch (`leasing`), and pushes follow the merge rule (`pace`).
`chunk_rules` has the paper's sizes, for runs that ask for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chunk_model.costs import Costs
from chunk_model.observations import Observations
from gridml.protocol.messages import PUSH_AT_LEAST_S
from master.decisions.chunk_rules import GAUSSIAN, GOODPUT, paper_chunk

if TYPE_CHECKING:
    from chunk_model.select import Selected

FIRST_DEATHS = 3  # that make a first guess worth while,
FIRST_EXPOSURE_S = 600.0  # or so many seconds of all workers together in which nobody died
MORE_DEATHS, MORE_EXPOSURE = 1.25, 2.0  # a fit is made again when there is so many times as much to know
APART_S = 15.0  # seconds between two fits at least: sizes change a few times a minute at most
NOTABLE = 1.1  # a size that changes by less stays as it is,
STAYS = 0.99  # and so does one that is worth so much of the best: the hill is flat at its top
KNOWN_DEATHS = 10  # independent ones; a kind with fewer is taken to live as all do
# A master computes on one core. Merging and granting may each take so much of it.
MERGING, GRANTING = 0.5, 0.25
# Not all: the fit of a mixture takes a hundred times as long, and what is normal a Weibull law fits as well.
FAMILIES = ("exponential", "weibull", "lognormal", "kaplan_meier")


@dataclass(frozen=True)
class Seen:
    """What a fit can rest on: deaths, and seconds lived by all workers together, as at a moment of the run's clock."""

    deaths: int
    exposure_s: float
    at_s: float


@dataclass(frozen=True)
class KindFacts:
    """One kind of worker ("" for all together): what a chunk costs it, its lives, and the seconds from sending a push
    to its answer."""

    name: str
    costs: Costs
    lives: Observations
    travel_s: float = 0.0


@dataclass(frozen=True)
class Facts:
    """`kinds` begins with all workers together. `vertices` are those of an epoch, shared by `workers`, whose programs
    have batches of `batch`; `many`: a worker takes chunk after chunk. Merging a push costs the master `merge_s`, and
    granting a lease `grant_s`, however large it is. A chunk may have `largest` vertices, None: any number. `sizes` are
    in force. `expected` is a law that lives are expected to follow, as text, before enough of them were seen; `rule`
    is what the size of a chunk follows (`chunk_rules`)."""

    kinds: Sequence[KindFacts]
    vertices: int
    workers: int
    batch: int
    many: bool
    merge_s: float = 0.0
    grant_s: float = 0.0
    largest: int | None = None
    sizes: Sizes = field(default_factory=dict)
    expected: str | None = None
    rule: str = GOODPUT


@dataclass(frozen=True)
class Size:
    """What workers of one kind are given: seconds of training in a chunk, and between two pushes; `chunk` and
    `push_every` are the vertices that a typical one trains in them. `why` in a few words."""

    chunk_s: float
    push_s: float
    chunk: int
    push_every: int
    why: str


Sizes = Mapping[str, Size]  # by kind; "" for workers of which nothing is known


def merging_s(workers: int, merge_s: float) -> float:
    """Return the least seconds between two pushes of each of so many workers, if a push takes the master `merge_s`."""
    return workers * merge_s / MERGING


def push_at_least_s(live: int, merge_s: float) -> float:
    """Return the seconds after which a worker pushes however few vertices it has trained: oftener than the master can
    merge would only make pushes wait."""
    return max(PUSH_AT_LEAST_S, merging_s(live, merge_s))


def is_due(seen: Seen, last: Seen | None, *, expected: bool = False) -> tuple[bool, str]:
    """Whether lifetimes are fitted (again), given what the last fit rested on; the first at once if it is `expected`
    how long workers live."""
    if not seen.exposure_s > 0:
        return False, "nobody has lived yet"
    if last is None and expected:
        return True, "it was said how long workers live"
    if last is None:
        if seen.deaths >= FIRST_DEATHS:
            return True, f"{seen.deaths} workers have died"
        return seen.exposure_s >= FIRST_EXPOSURE_S, f"{seen.deaths} deaths in {span(seen.exposure_s)} of work"
    if seen.at_s - last.at_s < APART_S:
        return False, f"the last fit is {seen.at_s - last.at_s:.0f} s old"
    if seen.deaths > last.deaths and seen.deaths >= max(FIRST_DEATHS, MORE_DEATHS * last.deaths):
        return True, f"{seen.deaths} workers have died, {last.deaths} at the last fit"
    longer = seen.exposure_s >= MORE_EXPOSURE * last.exposure_s
    return longer, f"{span(seen.exposure_s)} were lived, {span(last.exposure_s)} at the last fit"


def size(facts: Facts) -> tuple[Sizes, str]:
    """The sizes for every kind that any can be chosen for, and why, kind by kind.

    The law of lifetimes is fitted to the kind's own lives if it has enough deaths, to all otherwise. Kinds whose sizes
    in force are nearly the best are left out. Takes some 50 ms a kind.
    """
    # Here, not above: a master would wait 0.3 s for scipy as it starts.
    from chunk_model.choose import Work, choose
    from chunk_model.goodput import chunk_goodput
    from chunk_model.hedge import hedged
    from chunk_model.parse import parse
    from chunk_model.select import Selected, select

    families = ("normal",) if facts.rule == GAUSSIAN else FAMILIES
    pooled: Selected | None = None
    typical_s = facts.kinds[0].costs.exec_s
    sizes: dict[str, Size] = {}
    reasons = []
    for kind in facts.kinds:
        costs, exec_s = kind.costs, kind.costs.exec_s
        try:
            if facts.expected is not None and facts.kinds[0].lives.independent_deaths < KNOWN_DEATHS:
                law_said, seen = parse(facts.expected), kind.lives.independent_deaths
                selected, lives = Selected(law_said, "", {}, "as was said before the run", seen, sure=False), kind.lives
            elif kind.lives.independent_deaths >= KNOWN_DEATHS or pooled is None:
                selected, lives = select(kind.lives, families), kind.lives
                pooled = pooled or selected
            else:
                selected, lives = pooled, facts.kinds[0].lives
            push_least_s = max(kind.travel_s, merging_s(facts.workers, facts.merge_s))
            work = Work(
                vertices=max(1, round(facts.vertices * typical_s / exec_s)),  # as if all were of this kind
                workers=facts.workers,
                batch=facts.batch,
                largest=None if facts.largest is None else max(facts.largest, facts.batch),
                many=facts.many,
                push_at_least=max(1, round(push_least_s / exec_s)),
            )
            law = hedged(selected.lifetime, lives)
            choice = choose(law, costs, work)
            chunk, reason = choice.chunk, f"{choice.reason} {' '.join(choice.warnings)}".rstrip()
            before = facts.sizes.get(kind.name)
            # Granting never asks for more than a chunk may have: there is no more to do, or to carry.
            highest_s = exec_s * min(work.vertices or 1, work.largest or math.inf)
            least_s = min(facts.workers * facts.grant_s / GRANTING, highest_s)
            if facts.rule != GOODPUT:
                most = max(facts.batch, round(highest_s / exec_s))
                chunk, reason = paper_chunk(facts.rule, selected.lifetime, costs, most)
                choice = choose(law, costs, replace(work, largest=max(chunk, facts.batch)))  # for how often it pushes
            elif before is not None and before.chunk_s >= least_s and before.push_s >= push_least_s:
                old = max(1, round(before.chunk_s / exec_s))
                push = min(old, max(1, round(before.push_s / exec_s)))
                if chunk_goodput(law, costs, old, many=facts.many, push_every=push) >= STAYS * choice.goodput:
                    continue
        except (ValueError, ArithmeticError) as error:  # they make no sense together: it says why, and what to do
            reasons.append(f"{kind.name or 'all workers'}: sizes stay as they were: {error}")
            continue
        push_every = min(choice.push_every or chunk, chunk)
        chunk_s = max(chunk * exec_s, least_s)
        why = f"{span(chunk_s)} of work, for lives of {span(selected.lifetime.mean())}"
        sizes[kind.name] = Size(chunk_s, push_every * exec_s, max(1, round(chunk_s / exec_s)), push_every, why)
        reasons.append(f"{kind.name or 'all workers'}: {reason} Lives: {selected.lifetime}; {selected.reason}")
    return sizes, " ".join(reason if reason.endswith(".") else f"{reason}." for reason in reasons)


def is_notable(old: Sizes, new: Sizes) -> tuple[bool, str]:
    """Whether any size differs enough from what is in force to change it."""
    for name, size in new.items():
        before = old.get(name)
        if before is None:
            return True, f"the first sizes for {name or 'all workers'}"
        for what, was_s, is_s in (
            ("chunks", before.chunk_s, size.chunk_s),
            ("push intervals", before.push_s, size.push_s),
        ):
            if max(was_s, is_s) > NOTABLE * min(was_s, is_s):
                return True, f"{what} of {name or 'all workers'} change from {span(was_s)} to {span(is_s)}"
    return False, "no size changes by more than a tenth"


def push_interval(
    ruled: int, sized: Size | None, rate: float, batch: int, live: int, merge_s: float
) -> tuple[int, str]:
    """Vertices between two pushes of a worker that trains `rate` vertices per second, in whole batches.

    `ruled` are those that the merge rule and the push budget want. A short life is worth more pushes than that; there
    are no more than the master can merge from `live` workers.
    """

    def whole(seconds: float) -> int:
        return max(1, round(seconds * rate / batch)) * batch

    if rate <= 0:
        return ruled, "as the merge rule and the push budget want; nothing is known of lifetimes"
    least = whole(merging_s(live, merge_s))
    if least > ruled:
        return least, f"{span(least / rate)} of work: the master merges no faster"
    if sized is None:
        return ruled, "as the merge rule and the push budget want; nothing is known of lifetimes"
    wanted = max(least, whole(sized.push_s))
    if wanted < ruled:
        return wanted, f"{span(wanted / rate)} of work: workers do not live for longer pushes to pay"
    return ruled, "as the merge rule and the push budget want; goodput would do with fewer"


def span(seconds: float) -> str:
    """A time in words, such as 4.5 min."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * length or unit == "s":
            return f"{seconds / length:.3g} {unit}"
    raise AssertionError("seconds are left")
