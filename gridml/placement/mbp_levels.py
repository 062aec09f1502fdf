"""What a level of the multilevel method does: rows paired on the way down, moved and evened out on the way up."""

from __future__ import annotations

import numpy as np

from gridml.placement.base import Counts
from gridml.placement.bipartite import BothSides, Ids
from gridml.placement.compiled import compiled
from gridml.placement.dense_counts import DenseCounts, WeighedRows, enter, leave

ALONE = -1
BUSY = 100  # rows, over which a column says little of who is alike
NOWHERE = np.iinfo(np.int64).max  # the price of a row that fits no other part


@compiled
def pair(graph: BothSides, works: Counts, order: Ids, heaviest: int, group: Ids) -> int:
    """Write the number of each row's group, int32 (rows,), into `group`; return how many groups there are.

    A row is paired with the free one that it shares the most columns with, one of d rows counting 1/(d − 1), for each
    row that it stands for; no pair has more than the work `heaviest`.
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
            if not 1 < last - first <= BUSY:
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
    """Return the part with room for a row that it brings the fewest columns, −1 where none has; how many columns it
    would bring that; and how many would leave its own part with it. `added` int64 (parts,) is room to count in."""
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
    """Move each row, in order, to the part with which fewest columns are touched in all, or as many and loads are more
    even; return how many moved. No part gets heavier than `most`, int64 (parts,), nor touches more than `limit`
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
    """Move rows out of parts that are heavier than `most`, int64 (parts,), but for `extra` parts that may be so by 1,
    or that touch more than `limit` columns: those first that bring the fewest columns elsewhere. Return how many
    moved."""
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
