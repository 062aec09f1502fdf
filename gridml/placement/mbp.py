"""Multilevel bipartite partitioning: merges rows that share columns, places the rest, and refines level by level.

Rows are merged level by level until few are left, and these are placed. Then merged rows are split again level by
level, and rows at the borders of parts move to better parts. This is after Duan, Wang and Wu, whose method as it is
printed is `mbp_printed`. Here only rows are merged, in pairs, by their shared columns; the two-step heuristic places
the coarsest level, which is random in the paper; a move must lower Σ |N(U_i)| without raising the largest |N(U_i)|. On
a level of merged rows, a part can exceed its bound by up to the work of the heaviest merged row. At the very end, rows
move out of the parts that exceed the memory limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gridml.codegen.compiled import compiled
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
from gridml.placement.serving import DenseCounts, WeighedRows, dense_counts, enter, leave
from gridml.placement.tsh import TshOptions, deal, infeasible, serve_greedily

ALONE = -1  # the `group` of a row that is in no group yet
MAX_COLUMN_ROWS = 100  # columns with more rows are ignored when rows are paired: they show little similarity
NOWHERE = np.iinfo(np.int64).max  # the price of a row that fits into no other part


@compiled
def pair(graph: BothSides, works: Counts, order: Ids, heaviest: int, group: Ids) -> int:
    """Write the group of each row, int32 (rows,), into `group`. Return the number of groups.

    A row is paired with the unpaired row that has the highest score. The score is the sum of 1/(d − 1) over the columns
    that both rows touch, divided by the work of the other row; d is the number of rows that touch the column. No pair
    has more work than `heaviest`.
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
    """Find the best part to move a row to: of the other parts with room, the one to which the row adds the least weight
    of touched columns. Return this part, −1 if no other part has room; the added weight; and the weight of columns that
    the row's own part would no longer touch. `added` int64 (parts,) is scratch."""
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
    """Move each row, in order, to another part if that lowers the total of touched columns, or evens out loads at the
    same total. Return the number of moves. No move makes a part heavier than `most`, int64 (parts,), or makes it touch
    more than `limit` columns."""
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
    """Move rows out of parts that are heavier than `most`, int64 (parts,), or touch more than `limit` columns. Rows
    whose move adds the fewest touched columns come first. Up to `extra` parts are allowed to be heavier by 1. Return
    the number of moves."""
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


SHRINKS = 0.95  # merging ends when a step keeps more than this fraction of the rows; the result of that step is dropped
LIGHT = 30  # the maximum work of a merged row is an even share divided by this, or 2 if that is more
LEEWAY = 0.02  # while rows move, a part can exceed its bound by this fraction, or by the heaviest row if that is more


@dataclass(frozen=True)
class MbpOptions(TshOptions):
    """Options of multilevel bipartite partitioning. `sample` of the two-step heuristic is ignored."""

    coarsest: int = 64  #: merging stops at a level with at most this many rows per part
    passes: int = 4  #: maximum number of passes over each level

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
    weight: Counts  #: the number of given rows that each row stands for, or their work, int64 (rows,)

    @staticmethod
    def of(graph: Bipartite) -> MergedLevel:
        return MergedLevel(graph, graph.works)


class Mbp:
    """Multilevel partitioning. O(edges × parts) time for each pass over a level; O(columns × parts) memory."""

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
    """Return the part of each row, the number of columns that each part touches, and the number of levels. If a memory
    limit cannot be kept, some parts touch more columns or have more rows than allowed."""
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
    """Return the levels, finest first, and the groups of each level but the last. The group of a row is the row of the
    next level that contains it."""
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
    """Improve the parts of a level's rows, in place, then bring the parts within their bounds. Return the number of
    columns that each part touches."""
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
    # The limit is enforced last, because the error message names the memory that is feasible without it.
    for bound in (UNLIMITED, limit):
        while even_out(graph, most, extra, bound, counts):
            pass
    return counts.touched


def _room(level: MergedLevel, parts: int, options: MbpOptions) -> tuple[Counts, int]:
    """Return the maximum work of each part, and the number of parts that are allowed 1 more. The maximum includes the
    work of the heaviest row minus 1, because merged rows cannot always be divided more evenly."""
    weight, weighted = level.weight, level.graph.row_weights is not None
    most, extra = room(int(weight.sum()), parts, options.slack, options.fractions, weighted=weighted)
    heaviest = int(weight.max())
    if heaviest > 1:
        return most + heaviest - 1, 0 if weighted else parts
    return most, extra
