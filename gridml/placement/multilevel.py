"""Multilevel placement: clusters rows until few are left, places these, and refines the placement at every level.

A cluster moves as a whole; if its rows moved one after another, the placements in between would be worse. Refinement
also accepts moves that make the placement worse, by less and less as its heat falls (simulated annealing). Large groups
of rows can only be found in the smallest graph. There Parsa's placement is annealed slowly, from a heat in proportion
to the columns of a mean row. Unless the given graph is large, several placements by Parsa are annealed.

Recursive bisection (`bisection`) finds groups that share hardly any columns, and pieces of a mesh. For total traffic it
is always tried; for other objectives only if the parts of the smallest graph share few columns. Its result is kept if
it is better by the aim. For total traffic, pairs of parts are also refined at every level, and the placed graph is
coarsened within its parts and refined again (V-cycles).

At the end the result is compared with that of `refined`, and the better one is kept, because clustering finds little
similarity if very many rows touch most columns. On large graphs `refined` adds at most a tenth to the time.
Alternatives that were tried are listed in docs/notes/placement.md.
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
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import MAX_PUSHES, Touches, anneal, falling, fit, sizes
from gridml.placement.refine_kernel import Bounds
from gridml.placement.refined import (
    RefinedOptions,
    Variant,
    best,
    finish,
    pace_of,
    refinements,
    variants,
    within_memory,
)
from gridml.placement.serving import serve

MIN_ROWS_PER_PART, MIN_ROWS = 30, 240  # minimum rows of the smallest graph, per part and in total
SHRINKS = 0.9  # clustering ends when a step keeps more than this fraction of the rows
HOT, COOL = 0.15, 0.02  # the first and last heat of the smallest graph, as fractions of the columns of its mean row
WORK = 12  # all passes over the smallest graph together visit at most this multiple of the given graph's edges
MAX_PASSES = 40  # maximum passes that anneal the smallest graph
GROWTH = 0.5  # a level's heat grows with this power of the mean size of its rows, because larger rows gain more
DEALT = 2  # number of Parsa placements of the smallest graph that are annealed; the best is refined further
# A given graph with more edges is annealed from one Parsa placement only. Levels with more edges are not bisected.
LARGE_GRAPH_EDGES = 500_000
# The smallest graph is bisected if its parts overlap little: the weights of the columns that they touch add up to less
# than this multiple of the weight of all used columns. MAX_OVERLAP is for graphs whose row degrees have a standard
# deviation above their mean: there halves with equally many rows touch very different numbers of columns.
MAX_OVERLAP, MAX_OVERLAP_EVEN = 1.2, 1.6
BISECTED_ROWS = 8  # a graph with fewer rows per part is not bisected
COLD = np.zeros(4)  # heats of the passes that only polish parts, such as those from bisection
FULL_HEAT = 10  # with fewer shared columns in a mean row the heat is lower, because one column is much for such rows
CYCLES, CYCLE_HEAT = 2, 0.3  # number of V-cycles, and their heat as a fraction of the usual heat


@dataclass(frozen=True)
class MultilevelOptions(RefinedOptions):
    """The options of `refined`. They do not apply to the smallest graph, which is annealed from HOT to COOL. `heat` is
    the heat for the given graph; its default is lower if a mean row has fewer than FULL_HEAT shared columns."""

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
    sizes: Parts | Counts  #: the number of rows in each cluster, int32 (rows,); with row weights their work, int64
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
        """True if the aim is only the sum of what parts touch, however uneven."""
        return self.variant.aim.power == 0

    def best(self, tried: Sequence[Touches]) -> Touches:
        return min(tried, key=lambda each: each.worth(self.variant.aim))

    def refined(self, level: Level, rows: Parts, price: NDArray[np.float64], heats: NDArray[np.float64]) -> Touches:
        """Refine the parts of a level's rows, starting with these prices (`TouchCounts.price`). If the aim is the
        total, refine also pairs of parts."""
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
        """Project the parts of the smallest graph to each larger graph in turn, and refine them there."""
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
    """Place the smallest graph by Parsa and anneal the result slowly. Unless the given graph is large, do so DEALT
    times. Return the results."""
    given, smallest, options = levels[0].graph, levels[-1].graph, of.options
    passes = min(MAX_PASSES, WORK * given.edges // max(1, smallest.edges))
    heats = smallest.edges / smallest.rows * np.geomspace(HOT, COOL, passes)
    tried = []
    for at in range(DEALT if given.edges <= LARGE_GRAPH_EDGES else 1):
        own = ParsaOptions(options.seed + at, options.slack, shares=options.shares)
        tried.append(of.refined(levels[-1], deal_out(smallest, of.parts, own)[0], np.zeros(of.parts), heats))
    return tried


def _heat(graph: Bipartite, options: MultilevelOptions) -> float:
    """Return the heat for the given graph. It is lower if rows have few shared columns, because then a loss of one
    column is large."""
    if options.heat is not None:
        return options.heat
    times = np.bincount(graph.neighbours, minlength=graph.columns)
    return options.usual_heat * min(1.0, float(times[times > 1].sum()) / graph.rows / FULL_HEAT)


def _levels(
    graph: Bipartite, parts: int, rng: np.random.Generator, rows: Parts | None = None
) -> tuple[list[Level], list[Parts]]:
    """Return the graphs from the largest to the smallest, and for each graph but the last the cluster of each of its
    rows, which is a row of the next graph. With `rows`, the part of each row, no cluster spans two parts."""
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
    """Return the part of each cluster. `rows` is the part of each row, and `to` the cluster that it became; no cluster
    spans two parts."""
    joined = np.empty(int(to.max()) + 1, np.int32)
    joined[to] = rows
    return joined
