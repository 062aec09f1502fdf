"""Multilevel placement: rows are clustered until few are left, these are placed, and every level is refined again.

A cluster moves at once where its rows, one after another, would have to pass through worse placements. Losses on the
way are limited by the falling heat of refinement (simulated annealing). Large groups are found or lost in the smallest
graph, so Parsa's placement is cooled slowly there, from a heat in proportion to what its mean row touches, several
times.

Groups that hardly share columns, and pieces of a mesh, are found by recursive bisection (`bisection`). For the largest
memory it is tried if the parts of the smallest graph share few columns, and kept if the aim prefers its result. For
total traffic it is always tried. There, pairs of parts are also refined at every level, and the parts are coarsened and
refined again (V-cycles) as long as that gains.

The result of `refined`, which costs at most a tenth on large graphs, is compared at the end: if most columns are
touched by very many rows, clusters have little to go by. What was tried is in docs/notes/placement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import ALL_FEATURES, Counts, Options, Parts, Placement, check, options_of
from gridml.placement.bipartite import Bipartite
from gridml.placement.bisection import bisect, coarsen, refine_pairs
from gridml.placement.finishing import best, finish, pace_of, within_memory
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import MAX_PUSHES, Touches, anneal, falling, fit, sizes
from gridml.placement.refine_kernel import Bounds
from gridml.placement.refined import RefinedOptions, Variant, refinements, variants
from gridml.placement.serving import serve

MIN_ROWS_PER_PART, MIN_ROWS = 30, 240  # of the smallest graph
SHRINKS = 0.9  # clustering ends at a step that keeps more of the rows
HOT, COOL = 0.15, 0.02  # the first and the last heat of the smallest graph, in columns of its mean row
WORK = 12  # cooling the smallest graph visits as many edges as 12 passes over the given graph
MAX_PASSES = 40  # over the smallest graph
GROWTH = 0.5  # a level's heat grows with this power of the mean size of its rows: larger rows have larger gains
DEALT = 2  # Parsa's placements of the smallest graph; the best one is refined further
# Larger given graphs have only one Parsa placement, and no larger level is bisected.
LARGE_GRAPH_EDGES = 500_000
# The smallest graph is bisected too if its parts touch less than this many times the columns there are: the first where
# degrees differ by more than their mean, so that halves with equally many rows are uneven, the second elsewhere.
MAX_OVERLAP, MAX_OVERLAP_EVEN = 1.2, 1.6
BISECTED_ROWS = 8  # a graph with fewer rows per part is not bisected
COLD = np.zeros(4)  # heats of the passes over parts from bisection, which are only polished
FULL_HEAT = 10  # shared columns of a mean row; with fewer the heat is less, because one column is much for such rows
CYCLES, CYCLE_HEAT = 2, 0.3  # V-cycles, and their share of the heat


@dataclass(frozen=True)
class MultilevelOptions(RefinedOptions):
    """The options of `refined`, for all levels except the smallest, which is cooled from HOT to COOL. The default heat
    is that of the given graph; it is less if rows have fewer than FULL_HEAT columns."""

    passes: int = 12


class Multilevel:
    """Coarsening, Parsa or bisection, refinement at every level, and sweeps that assign columns."""

    name = "multilevel"
    supports = ALL_FEATURES

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph. Raises UsageError if a memory limit cannot be kept."""
        check(graph, parts, options, self)
        own = options_of(MultilevelOptions, options)
        rng = np.random.default_rng([own.seed, 2])
        levels, became = _levels(graph, parts, rng)
        wanted = variants(graph, parts, own)
        tried = [_parted(levels, became, _Refiner(parts, own, variant, rng)) for variant in wanted]
        flat, of_flat, flat_why = refinements(graph, parts, options_of(RefinedOptions, options))
        at = best(tried + flat, graph, own)
        tally = within_memory((tried + flat)[at], graph, own, (wanted + of_flat)[at].aim)
        why = f"multilevel, {len(levels)} levels, the smallest of {levels[-1].graph.rows:,} rows"
        if at >= len(tried):
            why += f"; refined was better: {flat_why}"
        return Placement(parts, tally.rows, serve(graph, tally.rows, parts, own.seed, pace_of(graph, parts, own)), why)


@dataclass(frozen=True)
class Level:
    """A graph whose rows are clusters of rows of the given graph."""

    graph: Bipartite
    sizes: Parts | Counts  #: the rows of each cluster, int32 (rows,), or their work, int64
    mean: float = 1.0  #: the mean size of a row of the given graph

    @staticmethod
    def of(graph: Bipartite) -> Level:
        """Return the level of the given graph."""
        if graph.row_weights is None:
            return Level(graph, np.ones(graph.rows, np.int32))
        return Level(graph, graph.row_weights, float(graph.row_weights.mean()))


@dataclass(frozen=True)
class _Refiner:
    """Refines parts of any level, for one variant of the objective."""

    parts: int
    options: MultilevelOptions
    variant: Variant
    rng: np.random.Generator

    @property
    def total(self) -> bool:
        """True if the aim is only the total of what parts touch."""
        return self.variant.aim.power == 0

    def best(self, tried: Sequence[Touches]) -> Touches:
        return min(tried, key=lambda each: each.worth(self.variant.aim))

    def refined(self, level: Level, rows: Parts, price: NDArray[np.float64], heats: NDArray[np.float64]) -> Touches:
        """Refine the parts of a level's rows, starting with these prices of places. For the total, also refine pairs of
        parts."""
        options = self.options
        tally = Touches.of(level.graph, rows, self.parts, level.sizes, options.fractions, self.variant.pace)
        tally.price[:] = price
        mean_row = max(1, int(level.mean))
        loose = sizes(int(level.sizes.sum()), self.parts, options.slack, options.loose, options.fractions, mean_row)
        largest = max(1, int(level.sizes.max()))
        bounds = Bounds(np.maximum(1, loose.least - largest + 1), loose.most + largest - 1)
        fit(tally, self.rng, bounds, self.variant.aim, MAX_PUSHES)
        anneal(tally, self.rng, bounds, self.variant.aim, heats)
        if self.total and self.variant.pace is None:
            rows, price = tally.rows, tally.price
            refine_pairs(level.graph, level.sizes.astype(np.int64), rows, np.broadcast_to(bounds.most, self.parts))
            tally = Touches.of(level.graph, rows, self.parts, level.sizes, options.fractions, self.variant.pace)
            tally.price[:] = price
        return tally

    def bisect(self, level: Level) -> Touches:
        """Place a level's rows by bisection, and refine the parts without heat."""
        shares = np.full(self.parts, 1 / self.parts) if self.options.fractions is None else self.options.fractions
        rows = bisect(level.graph, level.sizes.astype(np.int64), shares, self.options.loose, self.rng)
        return self.refined(level, rows, np.zeros(self.parts), COLD)

    def up(self, levels: list[Level], became: list[Parts], tally: Touches, heat: float) -> Touches:
        """Project parts of the smallest graph to each larger one, and refine them there."""
        for level, to in zip(levels[-2::-1], became[::-1], strict=True):
            heats = falling(heat * (float(level.sizes.mean()) / level.mean) ** GROWTH, self.options.passes)
            tally = self.refined(level, tally.rows[to], tally.price, heats)
        return tally


def _parted(levels: list[Level], became: list[Parts], of: _Refiner) -> Touches:
    """Place the smallest graph, and refine its parts at every level."""
    given, smallest = levels[0].graph, levels[-1].graph
    tried = _smallest_parted(levels, of)
    touched = min(int(each.touched.sum()) for each in tried)
    max_overlap = MAX_OVERLAP if smallest.degrees.std() > smallest.degrees.mean() else MAX_OVERLAP_EVEN
    if smallest.rows >= of.parts * BISECTED_ROWS and (of.total or touched < max_overlap * given.used):
        tried.append(of.bisect(levels[-1]))
    heat = _heat(given, of.options)
    tally = of.up(levels, became, of.best(tried), heat)
    if not of.total:
        return finish(tally, of.rng, given, of.options, of.variant.aim)
    early = next((at for at, level in enumerate(levels[:-1]) if level.graph.edges <= LARGE_GRAPH_EDGES), None)
    if early is not None:
        tally = of.best([tally, of.up(levels[: early + 1], became[:early], of.bisect(levels[early]), heat)])
    for _ in range(CYCLES):
        again, became_again = _levels(given, of.parts, of.rng, tally.rows)
        turned = of.refined(again[-1], reduce(_joined, became_again, tally.rows), tally.price, COLD)
        tally = of.best([tally, of.up(again, became_again, turned, CYCLE_HEAT * heat)])
    return finish(tally, of.rng, given, of.options, of.variant.aim)


def _smallest_parted(levels: list[Level], of: _Refiner) -> list[Touches]:
    """Place the smallest graph by Parsa and cool the result slowly; several times if the given graph is small."""
    given, smallest, options = levels[0].graph, levels[-1].graph, of.options
    passes = min(MAX_PASSES, WORK * given.edges // max(1, smallest.edges))
    heats = smallest.edges / smallest.rows * np.geomspace(HOT, COOL, passes)
    tried = []
    for at in range(DEALT if given.edges <= LARGE_GRAPH_EDGES else 1):
        own = ParsaOptions(options.seed + at, options.slack, shares=options.shares)
        tried.append(of.refined(levels[-1], deal_out(smallest, of.parts, own)[0], np.zeros(of.parts), heats))
    return tried


def _heat(graph: Bipartite, options: MultilevelOptions) -> float:
    """Return the heat of the given graph: a loss of one column is large for rows with few columns."""
    if options.heat is not None:
        return options.heat
    times = np.bincount(graph.neighbours, minlength=graph.columns)
    return options.usual_heat * min(1.0, float(times[times > 1].sum()) / graph.rows / FULL_HEAT)


def _levels(
    graph: Bipartite, parts: int, rng: np.random.Generator, rows: Parts | None = None
) -> tuple[list[Level], list[Parts]]:
    """Return the graphs from the largest to the smallest, and the row of the next graph that each row became. With the
    parts of `rows`, a cluster never spans two parts."""
    levels, became = [Level.of(graph)], []
    fewest = max(parts * MIN_ROWS_PER_PART, MIN_ROWS)
    largest = max(1, graph.work // (fewest // 2 + 1))
    while levels[-1].graph.rows > fewest:
        smaller, joined, to = coarsen(levels[-1].graph, levels[-1].sizes, largest, rng, rows, fewest)
        if smaller.rows > SHRINKS * levels[-1].graph.rows:
            break
        levels.append(Level(smaller, joined, levels[0].mean))
        became.append(to)
        rows = None if rows is None else _joined(rows, to)
    return levels, became


def _joined(rows: Parts, to: Parts) -> Parts:
    """Return the parts of the clusters that rows became; a cluster never spans two parts."""
    joined = np.empty(int(to.max()) + 1, np.int32)
    joined[to] = rows
    return joined
