"""Rows dealt out step by step, one or two at a step: the first half of the two-step heuristic (see `tsh`).

Every row that waits is in one list for each part, that of its cost: the columns which it would bring the part. Lists
are linked both ways, so a row moves in a constant time when its cost falls, and room is needed for parts × rows
entries, however many edges there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Counts, Parts, Shares
from gridml.placement.bipartite import BothSides, Ids
from gridml.placement.compiled import compiled
from gridml.placement.neighbour_sets import Words

COST, BEFORE, AFTER = 0, 1, 2  # of an entry
NOBODY = -1


class Room(NamedTuple):
    """What parts may have: `most` int64 (parts,) of work and at most `limit` columns each. Next is the part with the
    least work for its share, `shares` float64 (parts,)."""

    most: Counts
    shares: Shares
    limit: int


class Dealt(NamedTuple):
    """What parts have: the columns that each touches, as bits (`neighbour_sets`) and in number, int64 (parts,), and the
    work of its rows, int64 (parts,). All of it changes in place."""

    sets: Words
    touched: Counts
    load: Counts


@compiled
def deal_by_steps(
    graph: BothSides,
    works: Counts,
    order: Ids,
    step: int,
    candidates: int,
    room: Room,
    extra: int,
    dealt: Dealt,
    parts: Parts,
) -> int:
    """Write the part of each row, int32 (rows,), into `parts`, −1 for one that fits nowhere; return what is left of
    `extra`.

    A step is that of the smallest part for its share. It takes the row that brings it the fewest columns, or the two of
    the `candidates` cheapest that bring it the fewest together. A part is open until it has its `room` of work, `works`
    int64 (rows,), and `extra` of them until they have one more. What the parts have been `dealt` already counts. Rows
    of the same cost are taken in the given order, at first.
    """
    offsets, neighbours, column_offsets, rows_of = graph
    most, shares, limit = room
    sets, touched, load = dealt
    count, k = len(offsets) - 1, len(load)
    entry, head = _all_waiting(graph, order, sets, k)
    deepest = head.shape[1] - 1
    lowest = np.zeros(k, np.int64)
    parts[:] = NOBODY
    mark = np.full(len(column_offsets) - 1, NOBODY, np.int32)
    cheapest = np.empty(candidates, np.int32)
    taken = np.empty(2, np.int32)
    closed = np.zeros(k, np.bool_)  # by the limit: what a row costs a part falls only when that takes another
    left = count
    while left:
        part, least_filled = NOBODY, 0.0
        for other in range(k):
            if closed[other] or load[other] > most[other] or (load[other] == most[other] and not extra):
                continue
            filled = load[other] / shares[other]
            if part == NOBODY or (filled, touched[other]) < (least_filled, touched[part]):
                part, least_filled = other, filled
        if part == NOBODY:
            break
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        level = lowest[part]
        while head[part, level] == NOBODY:
            level += 1
        lowest[part] = level
        if touched[part] + level > limit:
            closed[part] = True
            continue
        taken[0], taken[1] = head[part, level], NOBODY
        if step > 1 and left > 1:
            found, row = 0, taken[0]
            while found < candidates:
                if row == NOBODY:
                    level += 1
                    if level > deepest:
                        break
                    row = head[part, level]
                else:
                    cheapest[found] = row
                    found += 1
                    row = entry[part, row, AFTER]
            space = most[part] - load[part] + (extra > 0)
            best = limit - touched[part] + 1
            for i in range(found - 1):
                row = cheapest[i]
                # Together they cost at least what the dearer does, and what follows is dearer still.
                if entry[part, cheapest[i + 1], COST] >= best:
                    break
                if works[row] >= space:
                    continue
                for edge in range(offsets[row], offsets[row + 1]):
                    if not sets[neighbours[edge], word] & bit:
                        mark[neighbours[edge]] = row
                for j in range(i + 1, found):
                    second = cheapest[j]
                    if entry[part, second, COST] >= best:
                        break
                    both = int(entry[part, row, COST]) + int(entry[part, second, COST])
                    for edge in range(offsets[second], offsets[second + 1]):
                        both -= mark[neighbours[edge]] == row
                    if both < best:
                        best, taken[0], taken[1] = both, row, second
        for i in range(2):
            row = int(taken[i])
            if row == NOBODY:
                continue
            left -= 1
            parts[row] = part
            extra -= load[part] <= most[part] < load[part] + works[row]
            load[part] += works[row]
            for other in range(k):
                before, after = entry[other, row, BEFORE], entry[other, row, AFTER]
                if before == NOBODY:
                    head[other, entry[other, row, COST]] = after
                else:
                    entry[other, before, AFTER] = after
                if after != NOBODY:
                    entry[other, after, BEFORE] = before
            for edge in range(offsets[row], offsets[row + 1]):
                column = neighbours[edge]
                if sets[column, word] & bit:
                    continue
                sets[column, word] |= bit
                touched[part] += 1
                for at in range(column_offsets[column], column_offsets[column + 1]):
                    sharing = rows_of[at]
                    if parts[sharing] != NOBODY:
                        continue
                    cost = entry[part, sharing, COST]
                    before, after = entry[part, sharing, BEFORE], entry[part, sharing, AFTER]
                    if before == NOBODY:
                        head[part, cost] = after
                    else:
                        entry[part, before, AFTER] = after
                    if after != NOBODY:
                        entry[part, after, BEFORE] = before
                    cost -= 1
                    first = head[part, cost]
                    if first != NOBODY:
                        entry[part, first, BEFORE] = sharing
                    entry[part, sharing, COST], entry[part, sharing, BEFORE], entry[part, sharing, AFTER] = (
                        cost,
                        NOBODY,
                        first,
                    )
                    head[part, cost] = sharing
                    lowest[part] = min(lowest[part], cost)
    return max(0, extra)


@compiled
def _all_waiting(graph: BothSides, order: Ids, sets: Words, parts: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the lists of all rows: int32 (parts, rows, 3), a row's cost and its neighbours in the list, and int32
    (parts, costs), the first row of each list, which is the first in order."""
    offsets, neighbours, _, _ = graph
    count, deepest = len(offsets) - 1, 0
    for row in range(count):
        deepest = max(deepest, offsets[row + 1] - offsets[row])
    entry, head = np.empty((parts, count, 3), np.int32), np.full((parts, deepest + 1), NOBODY, np.int32)
    for part in range(parts):
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        for i in range(count - 1, -1, -1):
            row = order[i]
            cost = 0
            for edge in range(offsets[row], offsets[row + 1]):
                cost += not sets[neighbours[edge], word] & bit
            first = head[part, cost]
            entry[part, row, COST], entry[part, row, BEFORE], entry[part, row, AFTER] = cost, NOBODY, first
            if first != NOBODY:
                entry[part, first, BEFORE] = row
            head[part, cost] = row
    return entry, head
