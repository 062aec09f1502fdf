"""Refined placement: rows are placed by Parsa, then passes move them so that parts touch fewer columns.

The choices of passes, heats and powers are explained in docs/notes/placement.md.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    check,
    options_of,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.finishing import best, bounds_of, finish, pace_of, within_memory
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import Touches, anneal, falling
from gridml.placement.refine_kernel import Aim
from gridml.placement.serving import serve

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
