"""Refined placement: rows are placed by Parsa, then passes move them so that parts touch fewer columns.

The choices of passes, heats and powers are explained in docs/notes/placement.md.

Parts are evened out only if the largest part dominates the `Aim`, the objective that passes lower. If the objective
depends on work and on traffic (Duan's product, or seconds), several slacks are tried, and the best result is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from gridml.errors import UsageError
from gridml.placement.base import (
    ALL_FEATURES,
    DUAN,
    MEMORY,
    SECONDS,
    STAR,
    TOTAL,
    TRAFFIC,
    Options,
    PartRates,
    Placement,
    advice,
    check,
    least_memory,
    options_of,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.chains import exchange_in_cycles, fit_by_chains
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import MAX_PUSHES, Touches, anneal, falling, fit, fit_and_polish, sizes
from gridml.placement.refine_kernel import Aim, Bounds
from gridml.placement.serving import serve, served, sets_of

LEVELLING = Aim(8)  # the aim while some parts exceed the memory limit
STEEP = 4  # from this power on, the largest part dominates an aim
# The power of each pass that evens out parts; the last power is also used afterwards. Instead of these six passes,
# three or four make the largest memory 0.3 to 0.6% higher, and eight 0.2% lower. Powers of up to 256 change nothing.
EVENING = (12, 24, 48, 96, 96, 96)
ROUNDS = 6  # maximum rounds that move rows out of parts above the memory limit and refine the result
HEATS = np.array([1.0, 0.5, 0.0, 0.0])  # the heat of each pass with which a round refines (`Pass.heat`)
LOOSE = 0.03  # maximum fraction by which a part's work differs from its share during all passes but the final ones
EXACT = 1 - 1e-12  # a share that is a whole number but for its last bits is not rounded up
MAX_BISECTIONS = 6  # steps of the search for the smallest feasible limit, which the error message names


def bounds_of(graph: Bipartite, parts: int, options: Options, loose: float = 0.0) -> Bounds:
    """Return the bounds of each part's work. The maximum is the part's share times 1 + the larger of slack and `loose`,
    plus the work of a mean row."""
    mean_row = max(1, graph.work // graph.rows)
    return sizes(graph.work, parts, options.slack, loose, options.fractions, mean_row)


def ends_of(graph: Bipartite, options: Options, parts: int) -> tuple[Bounds, Bounds]:
    """Return (the bounds in which parts are polished, with the work of a mean row to spare; the final bounds).

    The final bounds can always be met. Without row weights they are (1 + slack) times the share, rounded up, so that
    |U_i| ≤ ⌈n/k⌉ without slack. With row weights they are (1 + slack) times the share, plus the heaviest row.
    """
    tight = bounds_of(graph, parts, options)
    if graph.row_weights is not None:
        return tight, sizes(graph.work, parts, options.slack, 0.0, options.fractions, graph.heaviest)
    share = (1 + options.slack) * graph.rows * (1 / parts if options.fractions is None else options.fractions)
    return tight, tight._replace(most=np.ceil(np.asarray(share) * EXACT).astype(np.int64))


def pace_of(graph: Bipartite, parts: int, options: Options) -> PartRates | None:
    """Return the costs of columns and work in each part if the objective is seconds, otherwise None."""
    if options.objective != SECONDS or options.rates is None:
        return None
    shares = np.full(parts, 1 / parts) if options.fractions is None else options.fractions
    return options.rates.pace(graph.work * shares)


def finish(tally: Touches, rng: np.random.Generator, graph: Bipartite, options: Options, aim: Aim) -> Touches:
    """Even out parts if the aim is steep, bring them within their bounds, and return the result. If the objective
    depends on work, several slacks up to the allowed one are tried."""
    if aim.power >= STEEP:
        aim = _even_out(tally, rng, bounds_of(graph, len(tally.load), options, LOOSE), aim)
    slacks = [options.slack]
    if options.objective in (DUAN, SECONDS) and options.slack:
        slacks = [0.0, options.slack / 2, options.slack]
    tries = []
    for slack in slacks:
        each = tally if len(slacks) == 1 else tally.copy()
        tight, final = ends_of(graph, replace(options, slack=slack), len(tally.load))
        fit_and_polish(each, rng, tight, aim)
        if graph.row_weights is None:
            fit_by_chains(each, final, aim)
        fit(each, rng, final, aim)
        # Parts without any room cannot be evened out by single rows. What chains cost is the largest part's.
        is_full = graph.row_weights is None and final.of(len(each.load)).most.sum() == graph.work
        if is_full and aim.power >= STEEP:
            exchange_in_cycles(each, aim)
        tries.append(each)
        if options.objective == SECONDS and options.fractions is None:
            tries.append(_by_pace(each, graph, options))
    return tries[best(tries, graph, options)]


def _even_out(tally: Touches, rng: np.random.Generator, bounds: Bounds, aim: Aim) -> Aim:
    """Even out what parts touch, with an ever steeper aim. Return the last aim."""
    max_power = tally.max_power
    aims = [aim._replace(power=min(power, max_power)) for power in EVENING]
    for each in aims:
        anneal(tally, rng, bounds, each, falling(0.0, 1))
    return aims[-1]


def _by_pace(tally: Touches, graph: Bipartite, options: Options) -> Touches:
    """Renumber the parts so that the part that touches most gets the number with the lowest cost per column."""
    pace = pace_of(graph, len(tally.load), options)
    if pace is None:
        return tally
    number = np.empty(len(tally.load), np.int32)
    number[np.argsort(-tally.touched, kind="stable")] = np.argsort(pace.cost, kind="stable")
    return Touches.of(graph, number[tally.rows], len(number), pace=tally.pace)


def best(tries: Sequence[Touches], graph: Bipartite, options: Options) -> int:
    """Return the index of the result with the lowest value of the objective. A single result is not evaluated."""
    if len(tries) == 1:
        return 0
    return min(range(len(tries)), key=[_figure(each, graph, options) for each in tries].__getitem__)


def within_memory(tally: Touches, graph: Bipartite, options: Options, aim: Aim) -> Touches:
    """Move rows until no part touches more than `options.memory`. If none does already, return `tally` itself.

    Raises UsageError if that fails. The message names the smallest limit that was found to be feasible.
    """
    if options.memory is None or tally.touched.max() <= options.memory:
        return tally
    kept = _keep_within(tally, graph, options, options.memory, aim)
    if kept is not None:
        return kept
    fails, holds = max(options.memory, least_memory(graph, len(tally.load)) - 1), int(tally.touched.max())
    for _ in range(MAX_BISECTIONS):
        if holds - fails < 2:
            break
        middle = (fails + holds) // 2
        if _keep_within(tally, graph, options, middle, aim) is None:
            fails = middle
        else:
            holds = middle
    raise UsageError(
        f"no placement on {len(tally.load)} parts was found in which none touches more than {options.memory:,}. None "
        f"can have less than {least_memory(graph, len(tally.load)):,}; {holds:,} was found to do. "
        f"{advice(graph, options.memory, options.slack)}"
    )


def _keep_within(tally: Touches, graph: Bipartite, options: Options, limit: int, aim: Aim) -> Touches | None:
    """Return a copy in which no part touches more than `limit`; None if that fails."""
    tally, parts = tally.copy(), len(tally.load)
    rng = np.random.default_rng([options.seed, 3])
    loose = bounds_of(graph, parts, options, LOOSE)._replace(limit=limit)
    tight, final = ends_of(graph, options, parts)
    for _ in range(ROUNDS):
        fit(tally, rng, loose, LEVELLING, MAX_PUSHES)
        anneal(tally, rng, loose, LEVELLING, HEATS)
        for bounds in (tight, final):
            fit(tally, rng, bounds._replace(limit=limit), LEVELLING, MAX_PUSHES)
        if (tally.load <= final.most).all() and tally.touched.max() <= limit:
            tally.sweep(rng, Bounds(tight.least, np.minimum(tight.most, final.most), limit), aim)
            return tally
    return None


def _figure(tally: Touches, graph: Bipartite, options: Options) -> tuple[float, float]:
    """Return the value of the objective, and, to break ties, the sum of what all parts touch."""
    parts, moved, everything = len(tally.load), tally.touched, float(tally.touched.sum())
    if options.objective == MEMORY:
        return float(tally.touched.max()), everything
    if options.objective == TOTAL:
        return everything, everything
    if options.topology != STAR:
        sets = sets_of(graph, tally.rows, parts)
        moved = served(sets, parts, options.seed, graph.column_weights, pace_of(graph, parts, options))[1]
    if options.objective == SECONDS and options.rates is not None:
        return float(options.rates.seconds(moved, tally.load).max()), everything
    work = 1.0 if options.objective == TRAFFIC else float(tally.load.max())
    return work * float(moved.max()), everything


# The default aim and heat of each objective. A power of 4 is a compromise: with 6 the largest traffic is 3% higher,
# with 3 the largest memory is 1% higher. `finishing.EVENING` evens out parts afterwards. With a `flat` of 0.1, parts
# far below the largest save columns too; a `flat` of 1 would raise the largest memory.
LEVEL, EVEN, PLAIN = (Aim(4, 0.1), 1.0), (Aim(2), 1.0), (Aim(0), 1.0)
DEFAULT_AIMS = {MEMORY: LEVEL, TRAFFIC: EVEN, TOTAL: PLAIN, DUAN: EVEN, SECONDS: EVEN}
ALTERNATIVES = {TRAFFIC: (LEVEL[0], PLAIN[0]), DUAN: (LEVEL[0],)}  # tried in addition to the default
# In a star the traffic of a part is the columns that it touches, so memory and traffic have the same aim.
DEFAULT_AIMS_IN_STAR = {**DEFAULT_AIMS, TRAFFIC: LEVEL, DUAN: LEVEL, SECONDS: LEVEL}


@dataclass(frozen=True)
class RefinedOptions(Options):
    """Options of refinement."""

    passes: int = 8  #: number of passes over all rows
    heat: float | None = None  #: `Pass.heat` of the first pass, in columns; it falls to 0; None: by the objective
    power: int | None = None  #: power of the `refine_kernel.Aim`, a whole number; None: by the objective
    #: maximum deviation of a part from its share during the passes, as a fraction of the share, if `slack` is less
    loose: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("passes", "heat", "power", "loose"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"{name} of refinement is {value}; expected a number from 0.")
        if self.power is not None and self.power % 1 != 0:
            raise UsageError(f"power of refinement is {self.power}; expected a whole number from 0.")

    @property
    def aim(self) -> Aim:
        """The aim of the passes."""
        usual, _ = self._usual
        return usual if self.power is None else Aim(int(self.power), usual.flat)

    @property
    def usual_heat(self) -> float:
        """The heat of the first pass."""
        return self._usual[1] if self.heat is None else self.heat

    @property
    def _usual(self) -> tuple[Aim, float]:
        return (DEFAULT_AIMS_IN_STAR if self.topology == STAR else DEFAULT_AIMS)[self.objective]


class Variant(NamedTuple):
    """One way to refine for an objective."""

    aim: Aim
    pace: PartRates | None = None  #: the costs of columns and work in each part; None: equal in all parts


def variants(graph: Bipartite, parts: int, options: RefinedOptions) -> list[Variant]:
    """Return the variants to try for the objective; the best result is kept.

    For the largest traffic all three aims are tried, because the best one depends on the graph, and for Duan's product
    two. For seconds, if parts differ in speed, rows are refined with and without a `pace`: a pace keeps columns away
    from slow parts, but can leave too many for the others. For all other objectives there is one variant.
    """
    tried = [Variant(options.aim)]
    pace = pace_of(graph, parts, options)
    if options.objective in ALTERNATIVES and options.power is None and options.aim != LEVEL[0]:
        tried += [Variant(aim) for aim in ALTERNATIVES[options.objective]]
    elif pace is not None and not all((costs == costs[0]).all() for costs in pace):
        tried.append(Variant(EVEN[0] if options.power is None else options.aim, pace))
    return tried


class Refined:
    """Parsa, refinement, and sweeps that assign columns."""

    name = "refined"
    supports = ALL_FEATURES

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph. Raises UsageError if a memory limit cannot be kept."""
        check(graph, parts, options, self)
        own = options_of(RefinedOptions, options)
        tried, wanted, why = refinements(graph, parts, own)
        at = best(tried, graph, own)
        tally = within_memory(tried[at], graph, own, wanted[at].aim)
        return Placement(parts, tally.rows, serve(graph, tally.rows, parts, own.seed, pace_of(graph, parts, own)), why)


def refinements(graph: Bipartite, parts: int, own: RefinedOptions) -> tuple[list[Touches], list[Variant], str]:
    """Refine Parsa's placement of the rows once for each of the `variants`. Return the results, the variants, and a
    description."""
    dealt, _, why = deal_out(graph, parts, ParsaOptions(own.seed, own.slack, shares=own.shares))
    rng = np.random.default_rng([own.seed, 1])
    tried, wanted = [], variants(graph, parts, own)
    for aim, pace in wanted:
        as_dealt = partial(Touches.of, graph, dealt, parts, shares=own.fractions, pace=pace)
        tally = as_dealt()
        before = tally.worth(aim)
        bounds = bounds_of(graph, parts, own, own.loose)
        anneal(tally, rng, bounds, aim, falling(own.usual_heat, own.passes))
        if tally.worth(aim) < before:
            tally = finish(tally, rng, graph, own, aim)
        if tally.worth(aim) >= before:  # the heat lost more than it gained: accept only moves with a gain
            tally = finish(as_dealt(), rng, graph, own, aim)
        if tally.worth(aim) >= before:
            tally = as_dealt()
        tried.append(tally)
    return tried, wanted, f"{why}, then {own.passes} passes of refinement"
