"""Rows joined in clusters until few are left, those placed by Parsa or by halving, and parted again: refined after
every step.

A cluster moves at once where its rows, one after another, would have to pass a worse place. Losses on the way are what
the falling heat of refinement allows. The smallest graph is where large groups are found or lost, so what Parsa dealt
out is cooled slowly there, from a heat that is a share of what its mean row touches, several times over.

Groups that hardly touch each other, and pieces of a mesh, are found by halving (`halving`), with moves at a loss and a
way back (Fiduccia and Mattheyses). For the largest memory it is tried where parts of the smallest graph have few
columns in common, and kept where the aim says so there: that was right wherever the ends differed by more than 3% (16
graphs on 2 to 256 parts). A 60 × 60 grid's 64 parts touch 13% less by it, powersim's 256 parts 27%; where rows differ
much in degree, halves of as many rows are too uneven to be mended later. For the sum of all that parts touch it is
always tried; there, parts are also mended two by two at every level, and the way down and up is gone again within the
parts (V-cycles), as long as that gains.

The answer of `refined`, which costs a tenth or less on large graphs, is compared with in the end: where most columns
are touched by very many rows clusters have little to go by (msweb).

Tried with pairs instead of clusters: one heat for all levels (1–2% worse than one that grows with the rows); five other
measures of how well two rows suit each other (as far apart as two seeds); a full heat where rows have few columns
(msweb: largest memory 62% better than by chance instead of 78%, others hardly differ); more halves to choose from, more
pairs of parts to refine and more V-cycles (each a few percent of total traffic for half as much time again). With
clusters: columns of up to 48 rows instead of 100 (a fifth quicker; total traffic of msweb 15% more), or of up to 300
(parts of MovieLens' ratings touch 2 to 10% less on 8 to 64 parts and 7% more on 4; twice the time), steps to two fifths
of the rows or to a half (as far apart as two seeds), clusters of at most three or four times the mean size (clicks lose
what clusters gain), twice and four times as large a smallest graph (the same, and 2% more total traffic).
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

MIN_ROWS_PER_PART, MIN_ROWS = 30, 240  # of a part, and in all, of the smallest graph
SHRINKS = 0.9  # a graph that keeps more of its rows is not joined further
HOT, COOL = 0.15, 0.02  # heats of the smallest graph, the first and the last, in columns of its mean row
WORK = 12  # passes over the given graph for which as many edges are looked at as in one placement of the smallest
MAX_PASSES = 40  # over the smallest graph
GROWTH = 0.5  # power of the mean size of a level's rows by which its heat is more: their gains are larger
DEALT = 2  # Parsa's placements of the smallest graph, of which the best is gone on with
# Larger given graphs have only one Parsa placement, and no larger level is bisected.
LARGE_GRAPH_EDGES = 500_000
# The smallest graph is bisected too if its parts touch less than this many times the columns there are: the first where
# degrees differ by more than their mean, so that halves with equally many rows are uneven, the second elsewhere.
APART, ALIKE_APART = 1.2, 1.6
HALVED_ROWS = 8  # of a part, of a graph that is bisected
COLD = np.zeros(4)  # heats of passes over what was bisected
FULL_HEAT = 10  # columns, shared with other rows, that a mean row has where the heat is the whole one
CYCLES, CYCLE_HEAT = 2, 0.3  # passes down and up again, at this share of the heat


@dataclass(frozen=True)
class MultilevelOptions(RefinedOptions):
    """As for `refined`, at each level but the smallest, which is cooled as HOT and COOL say; the heat is that of the
    given graph's, less where its rows have fewer than FULL_HEAT columns."""

    passes: int = 12


class Multilevel:
    """Coarsening, Parsa or halving, refinement at every level, and the columns served by sweeps."""

    name = "multilevel"
    supports = ALL_FEATURES

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Raises UsageError where a memory limit cannot be kept."""
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


@dataclass(frozen=True)
class _Refiner:
    """Refines parts of any level, for one variant of the objective."""

    parts: int
    options: MultilevelOptions
    variant: Variant
    rng: np.random.Generator

    @property
    def total(self) -> bool:
        """Whether what all parts touch is to be small, and nothing else."""
        return self.variant.aim.power == 0

    def best(self, tried: Sequence[Touches]) -> Touches:
        return min(tried, key=lambda each: each.worth(self.variant.aim))

    def refined(self, level: Level, rows: Parts, price: NDArray[np.float64], heats: NDArray[np.float64]) -> Touches:
        """Refine the parts of a level's rows, beginning with these prices of places; refine them two by two where all
        parts weigh the same."""
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
        """Place a level's rows by halving, and refine the parts without heat."""
        shares = np.full(self.parts, 1 / self.parts) if self.options.fractions is None else self.options.fractions
        rows = bisect(level.graph, level.sizes.astype(np.int64), shares, self.options.loose, self.rng)
        return self.refined(level, rows, np.zeros(self.parts), COLD)

    def up(self, levels: list[Level], became: list[Parts], tally: Touches, heat: float) -> Touches:
        """Refine parts of the smallest graph at every larger one."""
        for level, to in zip(levels[-2::-1], became[::-1], strict=True):
            heats = falling(heat * (float(level.sizes.mean()) / level.mean) ** GROWTH, self.options.passes)
            tally = self.refined(level, tally.rows[to], tally.price, heats)
        return tally


def _parted(levels: list[Level], became: list[Parts], of: _Refiner) -> Touches:
    """Place the smallest graph, and refine its parts level by level."""
    given, smallest = levels[0].graph, levels[-1].graph
    tried = _smallest_parted(levels, of)
    touched = min(int(each.touched.sum()) for each in tried)
    apart = APART if smallest.degrees.std() > smallest.degrees.mean() else ALIKE_APART
    if smallest.rows >= of.parts * HALVED_ROWS and (of.total or touched < apart * given.used):
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
    """Place the smallest graph by Parsa, and cool that slowly; of small graphs several times."""
    given, smallest, options = levels[0].graph, levels[-1].graph, of.options
    passes = min(MAX_PASSES, WORK * given.edges // max(1, smallest.edges))
    heats = smallest.edges / smallest.rows * np.geomspace(HOT, COOL, passes)
    tried = []
    for at in range(DEALT if given.edges <= LARGE_GRAPH_EDGES else 1):
        own = ParsaOptions(options.seed + at, options.slack, shares=options.shares)
        tried.append(of.refined(levels[-1], deal_out(smallest, of.parts, own)[0], np.zeros(of.parts), heats))
    return tried


def _heat(graph: Bipartite, options: MultilevelOptions) -> float:
    """The heat at the given graph: a loss of one column is much for rows that have few."""
    if options.heat is not None:
        return options.heat
    times = np.bincount(graph.neighbours, minlength=graph.columns)
    return options.usual_heat * min(1.0, float(times[times > 1].sum()) / graph.rows / FULL_HEAT)


def _levels(
    graph: Bipartite, parts: int, rng: np.random.Generator, rows: Parts | None = None
) -> tuple[list[Level], list[Parts]]:
    """The graphs from the largest to the smallest, and what rows of each became in the next. Where `rows` are in parts,
    those of two are not joined."""
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
    """Return the parts of what rows became, given theirs; those of two are not joined."""
    joined = np.empty(int(to.max()) + 1, np.int32)
    joined[to] = rows
    return joined
