"""Parsa's rows, refined: passes that move rows to where they leave fewer columns touched, the largest part's first.

Tried on graphs of 0.1 to 4 million edges, 16 parts: passes without heat (label propagation) end after three or four
with less; of eight passes a heat of 1 is best where rows have 10 columns, on click-through data one of 4 wins another
1% of total traffic, and 1 is the quickest, as few rows move. Prices of places (`refine.anneal`) gain most where parts
are uneven (Gowalla: total traffic 263% better than by chance, 247% without), and let equal parts be nearly as good as
those that differ by 3%. A higher power levels |N(U_i)| further and costs total traffic: 4 is best for that, 8 for the
largest memory. Passes that keep to the final sizes from the beginning find little: nearly every part is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridml.errors import UsageError
from gridml.placement.base import MEMORY, TOTAL, TRAFFIC, Options, Placement, check, options_of
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import Bounds, Tally, anneal, settle
from gridml.placement.serving import serve

# By objective, where a user does not say: the power to which a part's weight rises, and the heat.
USUAL = {MEMORY: (6.0, 1.0), TRAFFIC: (1.0, 1.0), TOTAL: (0.0, 2.0)}


@dataclass(frozen=True)
class RefinedOptions(Options):
    """`passes` look at every row, at a `heat` that falls from this many columns of loss to none. A part's weight rises
    with |N(U_i)| to the `power`. None: as the objective wants. Between the passes parts may differ by `loose` of their
    even share, more than `slack` lets them at the end."""

    passes: int = 8
    heat: float | None = None
    power: float | None = None
    loose: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("passes", "heat", "power", "loose"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"{name} of refinement is {value}; expected a number from 0.")

    @property
    def power_and_heat(self) -> tuple[float, float]:
        """Those that hold."""
        power, heat = USUAL[self.objective]
        return power if self.power is None else self.power, heat if self.heat is None else self.heat


class Refined:
    """Parsa, refinement, and the columns served by sweeps."""

    name = "refined"

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts)
        own = options_of(RefinedOptions, options)
        dealt, _, why = deal_out(graph, parts, ParsaOptions(own.seed, own.slack))
        rng = np.random.default_rng([own.seed, 1])
        tally = Tally.of(graph, dealt, parts)
        power, heat = own.power_and_heat
        before = tally.worth(power)
        anneal(tally, rng, sizes(graph.rows, parts, own.slack, own.loose), power, passes=own.passes, heat=heat)
        settle(tally, rng, sizes(graph.rows, parts, own.slack), power)
        rows = tally.rows if tally.worth(power) < before else dealt
        why = f"{why}, then {own.passes} passes of refinement"
        return Placement(parts, rows, serve(graph, rows, parts, own.seed), why)


def sizes(rows: int, parts: int, slack: float, loose: float = 0.0) -> Bounds:
    """The rows that a part may have: at most (1 + slack) times its even share and one more, and never none."""
    most = int((1 + max(slack, loose)) * rows / parts + 1)
    return Bounds(max(1, int(rows / parts * (1 - loose))) if loose else 1, most)
