"""Multilevel bipartite partitioning: rows that share columns are merged, level by level, until few are left to place;
then each level is taken apart again, and rows at the borders move where they belong (Duan, Wang and Wu, see `tsh`).

Of theirs only that much is known, and its improvements over random. Decided here: rows are merged in pairs, by the
columns they share; the two-step heuristic places the coarsest; a move must lower Σ |N(U_i)| and may not raise the
largest of them. On the way a part may be larger than it should by the heaviest row of its level; at the end it is not.
A memory limit moves rows out of the parts that touch more, last of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gridml.errors import UsageError
from gridml.placement.base import (
    COLUMN_WEIGHTS,
    DUAN,
    MEMORY_LIMIT,
    ROW_WEIGHTS,
    SHARES,
    TOTAL,
    UNLIMITED,
    Counts,
    Options,
    Parts,
    Placement,
    check,
    options_of,
    room,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.dense_counts import dense_counts
from gridml.placement.mbp_levels import even_out, improve, pair
from gridml.placement.tsh import TshOptions, deal, infeasible, serve_greedily

FEWER = 0.95  # of its rows a level must have less than, or it is the coarsest
LIGHT = 30  # of the heaviest merged rows make up a part
LEEWAY = 0.02  # of an even share, by which a part may be larger while rows move


@dataclass(frozen=True)
class MbpOptions(TshOptions):
    """The coarsest level has about `coarsest` rows a part; each level is gone over at most `passes` times. The rest is
    what the two-step heuristic takes, but for samples."""

    coarsest: int = 64
    passes: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coarsest < 1:
            raise UsageError(f"the coarsest level has {self.coarsest} rows a part; expected at least 1.")
        if self.passes < 0:
            raise UsageError(f"levels are gone over {self.passes} times; expected at least 0.")


@dataclass(frozen=True)
class Level:
    """A graph whose row i stands for `weight[i]` rows, or the work of as many, int64 (rows,)."""

    graph: Bipartite
    weight: Counts

    @staticmethod
    def of(graph: Bipartite) -> Level:
        return Level(graph, graph.works)


class Mbp:
    """Time grows with edges × parts, for each pass over a level; room for columns × parts counts."""

    name = "mbp"
    honours = frozenset({SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT, f"objective {TOTAL}", f"objective {DUAN}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Raises UsageError where no part may touch as many columns as some must."""
        check(graph, parts, options, self)
        own = options_of(MbpOptions, options)
        rows, touched, levels = _place(graph, parts, own)
        most, extra = _room(Level.of(graph), parts, own)
        load = np.bincount(rows, graph.row_weights, parts)
        if own.memory is not None and (touched.max() > own.memory or (load > most + (extra > 0)).any()):
            raise infeasible(graph, parts, own, _place(graph, parts, replace(own, memory=None))[1])
        return Placement(parts, rows, serve_greedily(graph, rows, parts), f"mbp, {levels} levels")


def _place(graph: Bipartite, parts: int, options: MbpOptions) -> tuple[Parts, Counts, int]:
    """Return the part of each row, the columns that each part touches, and how many levels there were. A memory limit
    that could not be kept leaves parts that touch more, or have more rows, than they should."""
    rng = np.random.default_rng(options.seed)
    levels, groups = _coarsen(Level.of(graph), parts, options, rng)
    free = TshOptions(
        options.seed, options.slack, shares=options.shares, step=options.step, candidates=options.candidates
    )
    rows, touched = deal(levels[-1].graph, levels[-1].weight, parts, free)
    for at in range(len(levels) - 1, -1, -1):
        if at < len(groups):
            rows = rows[groups[at]]
        limit = UNLIMITED if at or options.memory is None else options.memory
        touched = _refine(levels[at], rows, parts, options, limit, rng)
    return rows, touched, len(levels)


def _coarsen(
    level: Level, parts: int, options: MbpOptions, rng: np.random.Generator
) -> tuple[list[Level], list[Parts]]:
    """Return the levels, finest first, and for each but the last which row of the next one its rows are part of."""
    heaviest = max(2, int(level.weight.sum()) // (parts * LIGHT))
    levels, groups = [level], []
    while level.graph.rows > parts * options.coarsest:
        fine = level.graph
        group = np.empty(fine.rows, np.int32)
        order = rng.permutation(fine.rows).astype(np.int32)
        count = pair(fine.both_sides, level.weight, order, heaviest, group)
        if count > FEWER * fine.rows:
            break
        merged = Bipartite.from_edges(np.repeat(group, fine.degrees), fine.neighbours, (count, fine.columns))
        weight = np.bincount(group, level.weight, count).astype(np.int64)
        works = None if fine.row_weights is None else weight
        level = Level(replace(merged, row_weights=works, column_weights=fine.column_weights), weight)
        levels.append(level)
        groups.append(group)
    return levels, groups


def _refine(level: Level, rows: Parts, parts: int, options: MbpOptions, limit: int, rng: np.random.Generator) -> Counts:
    """Move rows of a level, in place, to where they belong, and then from where they are too many. Return the columns
    that each part touches."""
    weight = level.weight
    graph, counts = dense_counts(level.graph, weight, rows, parts)
    most, extra = _room(level, parts, options)
    heaviest = max(1, int(weight.max()))
    share = most - heaviest + 1
    loose = share + np.maximum(heaviest, (LEEWAY * share).astype(np.int64))
    for _ in range(options.passes):
        order = rng.permutation(len(rows)).astype(np.int32)
        if not improve(graph, order, loose, int(counts.touched.max()), counts):
            break
    # The limit comes last: what is found without it is what the error says can be had.
    for bound in (UNLIMITED, limit):
        while even_out(graph, most, extra, bound, counts):
            pass
    return counts.touched


def _room(level: Level, parts: int, options: MbpOptions) -> tuple[Counts, int]:
    """What each part of a level may have, and how many may have one more: a row of several may be too much by all but
    one of them."""
    weight, weighted = level.weight, level.graph.row_weights is not None
    most, extra = room(int(weight.sum()), parts, options.slack, options.fractions, weighted=weighted)
    heaviest = int(weight.max())
    if heaviest > 1:
        return most + heaviest - 1, 0 if weighted else parts
    return most, extra
