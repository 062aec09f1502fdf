"""Multilevel bipartite partitioning: merges rows that share columns, places the rest, and refines level by level.

Rows are merged level by level until few are left to place. Then each level is divided again, and rows at the borders
move to better parts (Duan, Wang and Wu, see `tsh`). Only this and the improvements are known of their method. Choices
made here: rows are merged in pairs, by the columns they share; the two-step heuristic places the coarsest level; a move
must lower Σ |N(U_i)| without raising the largest of them. Between levels a part may be too large by the heaviest row of
the level; at the end it is not. A memory limit moves rows out of the parts that touch more, last of all.
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
from gridml.placement.bipartite import Bipartite, BothSides, Ids
from gridml.placement.compiled import compiled
from gridml.placement.neighbours import DenseCounts, WeighedRows, dense_counts, enter, leave
from gridml.placement.tsh import TshOptions, deal, infeasible, serve_greedily

ALONE = -1  # the group of a row without a group
MAX_COLUMN_ROWS = 100  # columns with more rows are ignored: they say little about similarity
NOWHERE = np.iinfo(np.int64).max  # the price of a row that fits into no other part


@compiled
def pair(graph: BothSides, works: Counts, order: Ids, heaviest: int, group: Ids) -> int:
    """Write the group of each row, int32 (rows,), into `group`. Return the number of groups.

    A row is paired with the free row of the highest score. A shared column of d rows scores 1/(d − 1), and the score is
    divided by the work of the other row. No pair has more work than `heaviest`.
    """
    group[:] = ALONE
    shared = np.zeros(len(group), np.float64)
    met = np.empty(len(group), np.int32)
    groups = 0
    for row in order:
        if group[row] != ALONE:
            continue
        several = 0
        for edge in range(graph.offsets[row], graph.offsets[row + 1]):
            column = graph.neighbours[edge]
            first, last = graph.column_offsets[column], graph.column_offsets[column + 1]
            if not 1 < last - first <= MAX_COLUMN_ROWS:
                continue
            for at in range(first, last):
                other = graph.rows_of[at]
                if group[other] != ALONE or other == row or works[row] + works[other] > heaviest:
                    continue
                if shared[other] == 0.0:
                    met[several] = other
                    several += 1
                shared[other] += 1.0 / (last - first - 1)
        best = row
        for i in range(several):
            other = met[i]
            if best == row or shared[other] * works[best] > shared[best] * works[other]:
                best = other
        for i in range(several):
            shared[met[i]] = 0.0
        group[row] = group[best] = groups
        groups += 1
    return groups


@compiled
def _target(
    row: int, graph: WeighedRows, most: Counts, extra: int, limit: int, counts: DenseCounts, added: Counts
) -> tuple[int, int, int]:
    """Return the part with room to which a row brings the fewest columns, −1 if none has room; the weight of these
    columns; and the weight that leaves its own part with it. `added` int64 (parts,) is scratch."""
    own, touched, load = counts.rows[row], counts.touched, counts.load
    added[:] = 0
    freed = 0
    for edge in range(graph.offsets[row], graph.offsets[row + 1]):
        column = graph.neighbours[edge]
        freed += graph.sizes[column] * (counts.times[column, own] == 1)
        for part in range(len(load)):
            added[part] += graph.sizes[column] * (counts.times[column, part] == 0)
    best = -1
    for part in range(len(load)):
        after = load[part] + graph.works[row]
        if part == own or after > most[part] + (extra > 0) or touched[part] + added[part] > limit:
            continue
        if best < 0 or (added[part], load[part]) < (added[best], load[best]):
            best = part
    return best, added[max(best, 0)], freed


@compiled
def improve(graph: WeighedRows, order: Ids, most: Counts, limit: int, counts: DenseCounts) -> int:
    """Move each row, in order, to the part that minimises the total of touched columns; ties are decided by even loads.
    Return the number of moves. No part gets heavier than `most`, int64 (parts,), or touches more than `limit`
    columns."""
    load = counts.load
    added = np.zeros(len(load), np.int64)
    moved = 0
    for row in order:
        to, new, freed = _target(row, graph, most, 0, limit, counts, added)
        if to >= 0 and (new < freed or (new == freed and load[to] + graph.works[row] < load[counts.rows[row]])):
            leave(row, graph, counts)
            enter(row, to, graph, counts)
            moved += 1
    return moved


@compiled
def even_out(graph: WeighedRows, most: Counts, extra: int, limit: int, counts: DenseCounts) -> int:
    """Move rows out of parts that are heavier than `most`, int64 (parts,), or that touch more than `limit` columns, in
    the order of the columns that they bring elsewhere. `extra` parts may be heavier by 1. Return the number of
    moves."""
    touched, load = counts.touched, counts.load
    added = np.zeros(len(load), np.int64)
    price = np.full(len(counts.rows), NOWHERE, np.int64)
    for row in range(len(price)):
        own = counts.rows[row]
        if load[own] > most[own] or touched[own] > limit:
            to, new, freed = _target(row, graph, most, extra, limit, counts, added)
            if to >= 0:
                price[row] = new - freed
    larger = 0
    for part in range(len(load)):
        larger += load[part] > most[part]
    moved = 0
    for row in np.argsort(price):
        own, work = counts.rows[row], graph.works[row]
        if price[row] == NOWHERE:
            break
        over = load[own] > most[own] + 1 or (load[own] == most[own] + 1 and larger > extra)
        if not over and touched[own] <= limit:
            continue
        to, _, freed = _target(row, graph, most, extra - larger, limit, counts, added)
        if to < 0 or not (over or freed):
            continue
        larger -= load[own] > most[own] >= load[own] - work
        larger += load[to] <= most[to] < load[to] + work
        leave(row, graph, counts)
        enter(row, to, graph, counts)
        moved += 1
    return moved


SHRINKS = 0.95  # a level that keeps more of the rows is not used: the one before is the coarsest
LIGHT = 30  # a part has the weight of at least this many merged rows
LEEWAY = 0.02  # of an even share: the excess that a part may have while rows move


@dataclass(frozen=True)
class MbpOptions(TshOptions):
    """Options of multilevel bipartite partitioning. `sample` of the two-step heuristic is ignored."""

    coarsest: int = 64  #: rows per part of the coarsest level, approximately
    passes: int = 4  #: over each level, at most

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coarsest < 1:
            raise UsageError(f"the coarsest level has {self.coarsest} rows a part; expected at least 1.")
        if self.passes < 0:
            raise UsageError(f"levels are gone over {self.passes} times; expected at least 0.")


@dataclass(frozen=True)
class MergedLevel:
    """A graph whose rows are merged rows of the given graph."""

    graph: Bipartite
    weight: Counts  #: the rows that each row stands for, or their work, int64 (rows,)

    @staticmethod
    def of(graph: Bipartite) -> MergedLevel:
        return MergedLevel(graph, graph.works)


class Mbp:
    """O(edges × parts) time for each pass over a level; O(columns × parts) memory."""

    name = "mbp"
    supports = frozenset({SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT, f"objective {TOTAL}", f"objective {DUAN}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph. Raises UsageError if the memory limit cannot be kept."""
        check(graph, parts, options, self)
        own = options_of(MbpOptions, options)
        rows, touched, levels = _place(graph, parts, own)
        most, extra = _room(MergedLevel.of(graph), parts, own)
        load = np.bincount(rows, graph.row_weights, parts)
        if own.memory is not None and (touched.max() > own.memory or (load > most + (extra > 0)).any()):
            raise infeasible(graph, parts, own, _place(graph, parts, replace(own, memory=None))[1])
        return Placement(parts, rows, serve_greedily(graph, rows, parts), f"mbp, {levels} levels")


def _place(graph: Bipartite, parts: int, options: MbpOptions) -> tuple[Parts, Counts, int]:
    """Return the part of each row, the columns that each part touches, and the number of levels. If a memory limit
    cannot be kept, some parts touch more, or have more rows, than they may."""
    rng = np.random.default_rng(options.seed)
    levels, groups = _coarsen(MergedLevel.of(graph), parts, options, rng)
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
    level: MergedLevel, parts: int, options: MbpOptions, rng: np.random.Generator
) -> tuple[list[MergedLevel], list[Parts]]:
    """Return the levels, finest first, and for each but the last the row of the next level that each row became."""
    heaviest = max(2, int(level.weight.sum()) // (parts * LIGHT))
    levels, groups = [level], []
    while level.graph.rows > parts * options.coarsest:
        fine = level.graph
        group = np.empty(fine.rows, np.int32)
        order = rng.permutation(fine.rows).astype(np.int32)
        count = pair(fine.both_sides, level.weight, order, heaviest, group)
        if count > SHRINKS * fine.rows:
            break
        merged = Bipartite.from_edges(np.repeat(group, fine.degrees), fine.neighbours, (count, fine.columns))
        weight = np.bincount(group, level.weight, count).astype(np.int64)
        works = None if fine.row_weights is None else weight
        level = MergedLevel(replace(merged, row_weights=works, column_weights=fine.column_weights), weight)
        levels.append(level)
        groups.append(group)
    return levels, groups


def _refine(
    level: MergedLevel, rows: Parts, parts: int, options: MbpOptions, limit: int, rng: np.random.Generator
) -> Counts:
    """Improve the parts of a level's rows, in place, then bring them within their bounds. Return the columns that each
    part touches."""
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
    # The limit comes last: the error message names the memory that is feasible without it.
    for bound in (UNLIMITED, limit):
        while even_out(graph, most, extra, bound, counts):
            pass
    return counts.touched


def _room(level: MergedLevel, parts: int, options: MbpOptions) -> tuple[Counts, int]:
    """Return the maximum work of each part, and the number of parts that may have one more. A merged row may exceed the
    maximum by its weight minus 1."""
    weight, weighted = level.weight, level.graph.row_weights is not None
    most, extra = room(int(weight.sum()), parts, options.slack, options.fractions, weighted=weighted)
    heaviest = int(weight.max())
    if heaviest > 1:
        return most + heaviest - 1, 0 if weighted else parts
    return most, extra
