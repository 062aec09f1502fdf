"""Multilevel bipartite partitioning as it is printed: data and parameters are merged, placed at random, and refined.

Duan, Wang and Wu (see `tsh_printed`), section 5. On each level a random datum is merged with another that shares a
neighbour, and parameters likewise, until no two are left to merge. The coarsest graph is placed at random. On the way
back, each level is refined after Fiduccia and Mattheyses: of all data and parameters, the one whose move lowers the
communication volume Σ_i |N(D_i) \\ P_i| most moves first; each moves at most once, and only with a gain. `mbp` finds
better parts.

Choices made where the paper leaves something open:

- The volume decides about moves, as the text says. The expression |N(d) \\ P_i| − |N(d) \\ P_j| in the proof of theorem
  4 counts cut edges: it ignores that several data of a machine need the same parameter.
- Only the memory constraint bounds the moves in the paper, and without one all data would gather on one machine. Here a
  part has at most its share of the data, with LEEWAY on the way; `mbp.even_out` brings parts to ⌈n/k⌉ at the end. A
  datum that finds no part with room stays, unless its gain rises later.
- Merging ends at `coarsest` data per part, or where it merges hardly any. A datum is merged with the first it finds.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError
from gridml.placement.base import (
    DUAN,
    TOTAL,
    UNLIMITED,
    Counts,
    Fill,
    Options,
    Parts,
    Placement,
    check,
    in_turn,
    options_of,
    room,
)
from gridml.placement.bipartite import Bipartite, BothSides, Ids
from gridml.placement.mbp import LEEWAY, SHRINKS, even_out
from gridml.placement.serving import deal_unused, dense_counts

ALONE = -1  # the `group` of a vertex that was not merged yet


@dataclass(frozen=True)
class PrintedMbpOptions(Options):
    """Options of multilevel bipartite partitioning as printed."""

    coarsest: int = 64  #: merging stops at a level with at most this many rows per part

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coarsest < 1:
            raise UsageError(f"the coarsest level has {self.coarsest} rows a part; expected at least 1.")


class PrintedMbp:
    """Merging of rows and columns, a random placement, and refinement by single moves. O(parts × (rows + columns))
    memory."""

    name = "mbp-printed"
    supports = frozenset({f"objective {TOTAL}", f"objective {DUAN}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        own = options_of(PrintedMbpOptions, options)
        rng = np.random.default_rng(own.seed)
        # The weights of a level's rows and columns are the numbers of rows and columns that were merged.
        levels = [graph.weighted(np.ones(graph.rows), np.ones(graph.columns)) if graph.columns else graph]
        groups: list[tuple[Ids, Ids]] = []
        while levels[-1].rows > parts * own.coarsest and graph.columns:
            coarser, group = merged(levels[-1], rng)
            if coarser.rows > SHRINKS * levels[-1].rows:
                break
            levels.append(coarser)
            groups.append(group)
        rows, home = at_random(levels[-1], parts, rng)
        most, extra = room(graph.rows, parts, own.slack)
        for at in range(len(levels) - 1, -1, -1):
            level = levels[at]
            if at < len(groups):
                rows, home = rows[groups[at][0]], home[groups[at][1]]
            loose = most + np.maximum(level.heaviest, (LEEWAY * most).astype(np.int64))
            refine(level, rows, home, loose)
        weighed, counts = dense_counts(graph, graph.works, rows, parts)
        while even_out(weighed, most, extra, UNLIMITED, counts):
            pass
        used = np.bincount(graph.neighbours, minlength=graph.columns) > 0
        home = np.where(used, home, ALONE).astype(np.int32)
        deal_unused(home, parts)
        return Placement(parts, rows, home, f"mbp as printed, {len(levels)} levels")


def merged(level: Bipartite, rng: np.random.Generator) -> tuple[Bipartite, tuple[Ids, Ids]]:
    """Merge pairs of rows with a common column, and pairs of columns with a common row. Return the coarser graph, and
    the row and the column of it that each row and each column became, int32 (rows,) and (columns,)."""
    sides, across = level.both_sides, level.transposed.both_sides
    row_of, column_of = np.full(level.rows, ALONE, np.int32), np.full(level.columns, ALONE, np.int32)
    rows = pair(sides, rng.permutation(level.rows).astype(np.int32), row_of)
    columns = pair(across, rng.permutation(level.columns).astype(np.int32), column_of)
    ends = np.repeat(row_of, level.degrees), column_of[level.neighbours]
    coarser = Bipartite.from_edges(*ends, (rows, columns))
    return coarser.weighted(np.bincount(row_of, level.works, rows), np.bincount(column_of, level.sizes, columns)), (
        row_of,
        column_of,
    )


@compiled
def pair(graph: BothSides, order: Ids, group: Ids) -> int:
    """Pair each row, in order, with the first unpaired row that shares a column. Write the number of each pair, or of
    a row that is left alone, into `group`, int32 (rows,), all ALONE before. Return how many there are."""
    # Rows of a column that were paired are skipped for good, so all searches together visit each edge about once.
    next_row = graph.column_offsets[:-1].copy()
    groups = 0
    for row in order:
        if group[row] != ALONE:
            continue
        group[row] = groups
        edge, after, found = graph.offsets[row], graph.offsets[row + 1], False
        while edge < after and not found:
            column = graph.neighbours[edge]
            last = graph.column_offsets[column + 1]
            while next_row[column] < last and group[graph.rows_of[next_row[column]]] != ALONE:
                next_row[column] += 1
            if next_row[column] < last:
                group[graph.rows_of[next_row[column]]] = groups
                found = True
            edge += 1
        groups += 1
    return groups


def at_random(level: Bipartite, parts: int, rng: np.random.Generator) -> tuple[Parts, Parts]:
    """Return a random part for each row and each column, so that parts have equal shares of the row weights."""
    rows = np.empty(level.rows, np.int32)
    fill = Fill(np.zeros(parts), np.full(parts, 1 / parts), level.works)
    in_turn(rng.permutation(level.rows).astype(np.int32), fill, rows)
    return rows, (rng.permutation(level.columns) % parts).astype(np.int32)


def refine(level: Bipartite, rows: Parts, home: Parts, most: Counts) -> int:
    """Move rows and columns, each at most once, as long as that lowers the volume. Return the number of moves.

    `rows` int32 (rows,) and `home` int32 (columns,) are the parts of rows and columns, which change in place. No move
    raises the row weights of a part above `most`, int64 (parts,).
    """
    parts = len(most)
    ones = np.ones(level.edges, np.int32)
    part_of = np.repeat(rows, level.degrees)
    times = csr_array((ones, (level.neighbours, part_of)), shape=(level.columns, parts)).toarray().astype(np.int32)
    load = np.bincount(rows, level.works, parts).astype(np.int64)
    return int(_refine(level.both_sides, level.works, level.sizes, rows, home, times, load, most))


@compiled
def _refine(
    graph: BothSides, works: Counts, sizes: Counts, rows: Parts, home: Parts, times: Ids, load: Counts, most: Counts
) -> int:
    """`times` int32 (columns, parts) is the number of rows of each part that touch a column, and `load` int64 (parts,)
    the row weight of each part; both change in place."""
    # The gain of moving a row to part b is saved[row] − spent[row, b]: the weight of the columns that its own part
    # would no longer fetch, less the weight of those that b would fetch. A column's gain is its weight if its own part
    # does not need it, and another does. Gains that fall are noticed when the vertex is taken from the heap.
    offsets, neighbours, column_offsets, rows_of = graph
    count, parts = len(rows), len(load)
    saved, spent = np.zeros(count, np.int64), np.zeros((count, parts), np.int64)
    heap = [(np.int64(0), np.int64(0))]  # (−gain, vertex): rows come first, then columns. Old entries stay in it.
    heap.clear()
    for row in range(count):
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            saved[row] += sizes[column] * (times[column, rows[row]] == 1 and home[column] != rows[row])
            for part in range(parts):
                spent[row, part] += sizes[column] * (times[column, part] == 0 and home[column] != part)
        heap.append((spent[row].min() - saved[row], np.int64(row)))
    for column in range(len(home)):
        if times[column, home[column]] == 0:
            heap.append((-sizes[column], np.int64(count + column)))
    heapq.heapify(heap)
    moved = np.zeros(count + len(home), np.bool_)
    moves = 0
    while heap:
        key, vertex = heapq.heappop(heap)
        if moved[vertex] or key >= 0:
            continue
        if vertex >= count:
            column = vertex - count
            best = 0
            while best < parts and times[column, best] == 0:
                best += 1
            if times[column, home[column]] or best == parts:
                continue  # its part has come to need it
            moved[vertex] = True
            moves += 1
            for at in range(column_offsets[column], column_offsets[column + 1]):
                row = rows_of[at]
                spent[row, home[column]] += sizes[column]
                saved[row] -= sizes[column] * (rows[row] == best and times[column, best] == 1)
            home[column] = best
            continue
        row = int(vertex)
        own, best = rows[row], -1
        for part in range(parts):
            fits = part != own and load[part] + works[row] <= most[part]
            if fits and (best < 0 or spent[row, part] < spent[row, best]):
                best = part
        if best < 0:
            continue
        if spent[row, best] - saved[row] != key:
            heapq.heappush(heap, (spent[row, best] - saved[row], vertex))
            continue
        moved[vertex] = True
        moves += 1
        rows[row] = best
        load[own] -= works[row]
        load[best] += works[row]
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            times[column, own] -= 1
            times[column, best] += 1
            left, joined, size = times[column, own], times[column, best], sizes[column]
            if left == 0 and home[column] == own and not moved[count + column]:
                heapq.heappush(heap, (-size, np.int64(count + column)))
            if left > 1 and joined > 2:
                continue
            for at in range(column_offsets[column], column_offsets[column + 1]):
                other, rises = rows_of[at], False
                if home[column] != own:
                    spent[other, own] += size * (left == 0)
                    if left == 1 and rows[other] == own:
                        saved[other] += size
                        rises = True
                if home[column] != best:
                    spent[other, best] -= size * (joined == 1)
                    rises = rises or joined == 1
                    saved[other] -= size * (joined == 2 and rows[other] == best and other != row)
                if rises and not moved[other]:
                    least = np.int64(UNLIMITED)
                    for part in range(parts):
                        if part != rows[other]:
                            least = min(least, spent[other, part])
                    heapq.heappush(heap, (least - saved[other], np.int64(other)))
    return moves
