"""Parsa's rows, refined: passes that move rows to where they leave fewer columns touched, the largest part's first.

Tried on graphs of 0.1 to 4 million edges, 16 parts: passes without heat (label propagation) end after three or four
with less; of eight passes a heat of 1 is best where rows have 10 columns, on click-through data one of 4 wins another
1% of total traffic, and 1 is the quickest, as few rows move. Prices of places (`refine.anneal`) gain most where parts
are uneven (Gowalla: total traffic 263% better than by chance, 247% without), and let equal parts be nearly as good as
those that differ by 3%. Passes that keep to the final sizes from the beginning find little: nearly every part is full.
Six passes or five instead of eight, now that six more even the parts out, lose 1% of the largest memory (ibm01 3%).
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

# By objective, where a user does not say: what passes lower, and the heat. A power of four, where parts are evened out
# afterwards (`ending.EVENING`), was chosen among 2 to 10 on gowalla, email-enron, as-caida, ca-condmat, ibm01,
# powersim, facebook, 20news, msweb and small clicks, the flat part before that on some of them; the others are the
# judges. With six the largest traffic was 3% more, with three the largest memory 1%. A flat part of 1 lowers total
# traffic by a few percent more and raises the largest memory by as much; with none facebook is worse. In a star what a
# part touches is what travels.
LEVEL, EVEN, PLAIN = (Aim(4, 0.1), 1.0), (Aim(2), 1.0), (Aim(0), 1.0)
DEFAULT_AIMS = {MEMORY: LEVEL, TRAFFIC: EVEN, TOTAL: PLAIN, DUAN: EVEN, SECONDS: EVEN}
ALTERNATIVES = {TRAFFIC: (LEVEL[0], PLAIN[0]), DUAN: (LEVEL[0],)}  # what is tried beside it
DEFAULT_AIMS_IN_STAR = {**DEFAULT_AIMS, TRAFFIC: LEVEL, DUAN: LEVEL, SECONDS: LEVEL}


@dataclass(frozen=True)
class RefinedOptions(Options):
    """`passes` look at every row, at a `heat` that falls from this many columns of loss to none. What a column costs a
    part rises with |N(U_i)| to the `power`, a whole number (`refine_kernel.Aim`). None: as the objective wants. Between
    the passes parts may differ by `loose` of their even share, more than `slack` lets them at the end."""

    passes: int = 8
    heat: float | None = None
    power: int | None = None
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
        """What passes lower."""
        usual, _ = self._usual
        return usual if self.power is None else Aim(int(self.power), usual.flat)

    @property
    def usual_heat(self) -> float:
        """The heat that holds."""
        return self._usual[1] if self.heat is None else self.heat

    @property
    def _usual(self) -> tuple[Aim, float]:
        return (DEFAULT_AIMS_IN_STAR if self.topology == STAR else DEFAULT_AIMS)[self.objective]


class Variant(NamedTuple):
    """What passes lower, and what columns cost each part, None: the same."""

    aim: Aim
    pace: PartRates | None = None


def variants(graph: Bipartite, parts: int, options: RefinedOptions) -> list[Variant]:
    """Return what is tried for the objective, whose best end is kept. It is one thing, but for the largest traffic all
    three, as which is best depends on the graph; for Duan's product two; and for seconds two where parts are not
    equally quick: columns that avoid slow parts can be too many for the others."""
    tried = [Variant(options.aim)]
    pace = pace_of(graph, parts, options)
    if options.objective in ALTERNATIVES and options.power is None and options.aim != LEVEL[0]:
        tried += [Variant(aim) for aim in ALTERNATIVES[options.objective]]
    elif pace is not None and not all((costs == costs[0]).all() for costs in pace):
        tried.append(Variant(EVEN[0] if options.power is None else options.aim, pace))
    return tried


class Refined:
    """Parsa, refinement, and the columns served by sweeps."""

    name = "refined"
    supports = ALL_FEATURES

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Raises UsageError where a memory limit cannot be kept."""
        check(graph, parts, options, self)
        own = options_of(RefinedOptions, options)
        tried, wanted, why = refinements(graph, parts, own)
        at = best(tried, graph, own)
        tally = within_memory(tried[at], graph, own, wanted[at].aim)
        return Placement(parts, tally.rows, serve(graph, tally.rows, parts, own.seed, pace_of(graph, parts, own)), why)


def refinements(graph: Bipartite, parts: int, own: RefinedOptions) -> tuple[list[Touches], list[Variant], str]:
    """Return Parsa's rows refined in each of the `variants`, those, and how they were found."""
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
        if tally.worth(aim) >= before:  # heat lost more than was found: only what gains at once
            tally = finish(as_dealt(), rng, graph, own, aim)
        if tally.worth(aim) >= before:
            tally = as_dealt()
        tried.append(tally)
    return tried, wanted, f"{why}, then {own.passes} passes of refinement"
