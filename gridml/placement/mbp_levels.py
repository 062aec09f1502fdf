"""What a level of the multilevel method does: rows paired on the way down, moved and evened out on the way up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.compiled import compiled

Ids = NDArray[np.int32]
Counts = NDArray[np.int64]
ALONE = -1
BUSY = 100  # rows, over which a column says little of who is alike


@compiled
def pair(
    offsets: Counts,
    neighbours: Ids,
    column_offsets: Counts,
    rows_of: Ids,
    weight: Counts,
    order: Ids,
    heaviest: int,
    group: Ids,
) -> int:
    """Write the number of each row's group, int32 (rows,), into `group`; return how many groups there are.

    A row is paired with the free one that it shares the most columns with, one of d rows counting 1/(d − 1), for each
    row that it stands for; no pair is heavier than `heaviest`.
    """
    group[:] = ALONE
    shared = np.zeros(len(group), np.float64)
    met = np.empty(len(group), np.int32)
    groups = 0
    for row in order:
        if group[row] != ALONE:
            continue
        found = 0
        for edge in range(offsets[row], offsets[row + 1]):
            first, last = column_offsets[neighbours[edge]], column_offsets[neighbours[edge] + 1]
            if not 1 < last - first <= BUSY:
                continue
            for at in range(first, last):
                other = rows_of[at]
                if group[other] != ALONE or other == row or weight[row] + weight[other] > heaviest:
                    continue
                if shared[other] == 0.0:
                    met[found] = other
                    found += 1
                shared[other] += 1.0 / (last - first - 1)
        best = row
        for i in range(found):
            other = met[i]
            if best == row or shared[other] * weight[best] > shared[best] * weight[other]:
                best = other
        for i in range(found):
            shared[met[i]] = 0.0
        group[row] = group[best] = groups
        groups += 1
    return groups


@compiled
def tally(
    offsets: Counts, neighbours: Ids, sizes: Counts, rows: Parts, times: NDArray[np.int32], touched: Counts
) -> None:
    """Count in `times` (columns, parts) the rows of each part that touch a column, and in `touched` (parts,) its
    columns, each as much as its size."""
    for row in range(len(rows)):
        for edge in range(offsets[row], offsets[row + 1]):
            if times[neighbours[edge], rows[row]] == 0:
                touched[rows[row]] += sizes[neighbours[edge]]
            times[neighbours[edge], rows[row]] += 1


@compiled
def _target(
    row: int,
    own: int,
    offsets: Counts,
    neighbours: Ids,
    sizes: Counts,
    weight: Counts,
    most: Counts,
    extra: int,
    limit: int,
    times: NDArray[np.int32],
    size: Counts,
    touched: Counts,
    added: Counts,
) -> tuple[int, int, int]:
    """Return the part with room for a row that it brings the fewest columns, −1 where none has; how many columns it
    would bring that; and how many would leave its own part with it."""
    added[:] = 0
    freed = 0
    for edge in range(offsets[row], offsets[row + 1]):
        column = neighbours[edge]
        freed += sizes[column] * (times[column, own] == 1)
        for part in range(len(size)):
            added[part] += sizes[column] * (times[column, part] == 0)
    best = -1
    for part in range(len(size)):
        after = size[part] + weight[row]
        if part == own or after > most[part] + (extra > 0) or touched[part] + added[part] > limit:
            continue
        if best < 0 or (added[part], size[part]) < (added[best], size[best]):
            best = part
    return best, added[max(best, 0)], freed


@compiled
def _move(
    row: int,
    to: int,
    offsets: Counts,
    neighbours: Ids,
    sizes: Counts,
    weight: Counts,
    rows: Parts,
    times: NDArray[np.int32],
    size: Counts,
    touched: Counts,
) -> None:
    own = rows[row]
    for edge in range(offsets[row], offsets[row + 1]):
        column = neighbours[edge]
        times[column, own] -= 1
        touched[own] -= sizes[column] * (times[column, own] == 0)
        touched[to] += sizes[column] * (times[column, to] == 0)
        times[column, to] += 1
    size[own] -= weight[row]
    size[to] += weight[row]
    rows[row] = to


@compiled
def improve(
    offsets: Counts,
    neighbours: Ids,
    sizes: Counts,
    weight: Counts,
    order: Ids,
    most: Counts,
    limit: int,
    rows: Parts,
    times: NDArray[np.int32],
    size: Counts,
    touched: Counts,
) -> int:
    """Move each row, in order, to the part with which fewest columns are touched in all, or as many and sizes are more
    even; return how many moved. No part gets heavier than `most`, nor touches more than `limit` columns."""
    added = np.zeros(len(size), np.int64)
    moved = 0
    for row in order:
        own = rows[row]
        to, new, freed = _target(
            row, own, offsets, neighbours, sizes, weight, most, 0, limit, times, size, touched, added
        )
        if to >= 0 and (new < freed or (new == freed and size[to] + weight[row] < size[own])):
            _move(row, to, offsets, neighbours, sizes, weight, rows, times, size, touched)
            moved += 1
    return moved


@compiled
def even_out(
    offsets: Counts,
    neighbours: Ids,
    sizes: Counts,
    weight: Counts,
    most: Counts,
    extra: int,
    limit: int,
    rows: Parts,
    times: NDArray[np.int32],
    size: Counts,
    touched: Counts,
) -> int:
    """Move rows out of parts that are heavier than `most`, but for `extra` parts that may be so by 1, or that touch
    more than `limit` columns: those first that bring the fewest columns elsewhere. Return how many moved."""
    count = len(rows)
    added = np.zeros(len(size), np.int64)
    price = np.full(count, np.iinfo(np.int64).max, np.int64)
    for row in range(count):
        own = rows[row]
        if size[own] > most[own] or touched[own] > limit:
            to, new, freed = _target(
                row, own, offsets, neighbours, sizes, weight, most, extra, limit, times, size, touched, added
            )
            if to >= 0:
                price[row] = new - freed
    larger = 0
    for part in range(len(size)):
        larger += size[part] > most[part]
    moved = 0
    for row in np.argsort(price):
        own = rows[row]
        if price[row] == np.iinfo(np.int64).max:
            break
        over = size[own] > most[own] + 1 or (size[own] == most[own] + 1 and larger > extra)
        if not over and touched[own] <= limit:
            continue
        room = extra - larger
        to, _, freed = _target(
            row, own, offsets, neighbours, sizes, weight, most, room, limit, times, size, touched, added
        )
        if to < 0 or not (over or freed):
            continue
        larger -= size[own] > most[own] >= size[own] - weight[row]
        larger += size[to] <= most[to] < size[to] + weight[row]
        _move(row, to, offsets, neighbours, sizes, weight, rows, times, size, touched)
        moved += 1
    return moved
