"""Rows joined in pairs until few are left, those placed by Parsa, and parted again: refined after every step.

A pair moves at once where its two rows, one after the other, would have to pass a worse place. Losses on the way are
what the falling heat of refinement allows; a queue of gains with a way back (Fiduccia and Mattheyses) was not tried.

The smallest graph is where large groups are found or lost, so it is cooled slowly, from a heat that is a share of what
its mean row touches, several times over. On uniform graphs a quarter of that work does as well.

Tried: mates by columns of up to 48, 100, 300 and 500 rows (a few percent apart, the last twice as slow); one heat for
all levels (1–2% worse than one that grows with the rows). The first placement by halving again and again, and a second
way down and up within the parts (V-cycles), were no better than the same time in more passes. A heat of 4 shakes plain
groups apart. Eight times as many passes over the smallest graph, from a heat of 0.4, bring powersim's total traffic to
12,300% better than by chance instead of 7,200 (Mt-KaHyPar: 19,400).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import EVERYTHING, Counts, Options, Parts, Placement, check, options_of
from gridml.placement.bipartite import Bipartite
from gridml.placement.coarsen import coarsen
from gridml.placement.ending import best, ended, pace_of, within_memory
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import PUSHES, Tally, anneal, falling, fit, sizes
from gridml.placement.refine_kernel import Bounds
from gridml.placement.refined import RefinedOptions, Way, ways
from gridml.placement.serving import serve

LEAST_ROWS = 60  # of a part, of the smallest graph
SHRINKS = 0.9  # a graph that keeps more of its rows is not joined further
HOT, COOL = 0.15, 0.02  # heats of the smallest graph, the first and the last, in columns of its mean row
WORK = 12  # passes over the given graph for which as many edges are looked at as in one placement of the smallest
MOST_PASSES = 100  # over the smallest graph
GROWTH = 0.5  # power of the mean size of a level's rows by which its heat is more: their gains are larger
TRIES = 3  # placements of the smallest graph, of which the best is gone on with


@dataclass(frozen=True)
class MultilevelOptions(RefinedOptions):
    """As for `refined`, at each level but the smallest, which is cooled as HOT and COOL say; the heat is that of the
    given graph's."""

    passes: int = 12


class Multilevel:
    """Coarsening, Parsa, refinement at every level, and the columns served by sweeps."""

    name = "multilevel"
    honours = EVERYTHING

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Raises UsageError where a memory limit cannot be kept."""
        check(graph, parts, options, self)
        own = options_of(MultilevelOptions, options)
        rng = np.random.default_rng([own.seed, 2])
        levels, became = _levels(graph, parts, rng)
        wanted = ways(graph, parts, own)
        tried = [_parted(levels, became, parts, own, way, rng) for way in wanted]
        at = best(tried, graph, own)
        tally = within_memory(tried[at], graph, own, wanted[at].aim)
        why = f"multilevel, {len(levels)} levels, the smallest of {levels[-1].graph.rows:,} rows"
        return Placement(parts, tally.rows, serve(graph, tally.rows, parts, own.seed, pace_of(graph, parts, own)), why)


@dataclass(frozen=True)
class Level:
    """A graph whose row i stands for `sizes[i]` rows, int32 (rows,), or for so much work, int64; a row of the given
    graph has `mean` in the mean."""

    graph: Bipartite
    sizes: Parts | Counts
    mean: float = 1.0

    @staticmethod
    def of(graph: Bipartite) -> Level:
        """The given graph."""
        if graph.row_weights is None:
            return Level(graph, np.ones(graph.rows, np.int32))
        return Level(graph, graph.row_weights, float(graph.row_weights.mean()))


def _parted(
    levels: list[Level], became: list[Parts], parts: int, options: MultilevelOptions, way: Way, rng: np.random.Generator
) -> Tally:
    """Place the smallest graph, and refine its parts level by level."""
    given, smallest = levels[0].graph, levels[-1].graph
    degree = smallest.edges / smallest.rows
    passes = min(MOST_PASSES, WORK * given.edges // max(1, smallest.edges))
    heats = degree * np.geomspace(HOT, COOL, passes)
    tried = []
    for at in range(TRIES):
        dealt, _, _ = deal_out(smallest, parts, ParsaOptions(options.seed + at, options.slack, shares=options.shares))
        tried.append(_refined(levels[-1], dealt, np.zeros(parts), options, way, rng, heats))
    tally = min(tried, key=lambda each: each.worth(way.aim))
    for level, to in zip(levels[-2::-1], became[::-1], strict=True):
        heats = falling(options.usual_heat * (float(level.sizes.mean()) / level.mean) ** GROWTH, options.passes)
        tally = _refined(level, tally.rows[to], tally.price, options, way, rng, heats)
    return ended(tally, rng, given, options, way.aim)


def _refined(
    level: Level,
    rows: Parts,
    price: NDArray[np.float64],
    options: MultilevelOptions,
    way: Way,
    rng: np.random.Generator,
    heats: NDArray[np.float64],
) -> Tally:
    """Refine the parts of a level's rows, beginning with these prices of places."""
    tally = Tally.of(level.graph, rows, len(price), level.sizes, options.fractions, way.pace)
    tally.price[:] = price
    mean_row = max(1, int(level.mean))
    loose = sizes(int(level.sizes.sum()), len(price), options.slack, options.loose, options.fractions, mean_row)
    largest = max(1, int(level.sizes.max()))
    bounds = Bounds(np.maximum(1, loose.least - largest + 1), loose.most + largest - 1)
    fit(tally, rng, bounds, way.aim, PUSHES)
    anneal(tally, rng, bounds, way.aim, heats)
    return tally


def _levels(graph: Bipartite, parts: int, rng: np.random.Generator) -> tuple[list[Level], list[Parts]]:
    """The graphs from the largest to the smallest, and what rows of each became in the next."""
    levels, became = [Level.of(graph)], []
    largest = max(1, graph.work // (parts * LEAST_ROWS // 4 + 1))
    while levels[-1].graph.rows > parts * LEAST_ROWS:
        smaller, joined, to = coarsen(levels[-1].graph, levels[-1].sizes, largest, rng)
        if smaller.rows > SHRINKS * levels[-1].graph.rows:
            break
        levels.append(Level(smaller, joined, levels[0].mean))
        became.append(to)
    return levels, became
