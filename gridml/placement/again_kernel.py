"""The loop of placing again: rows moved to where they leave fewer columns touched, if that is worth the move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.compiled import compiled

Counts = NDArray[np.int64]


@compiled
def tally(offsets: Counts, neighbours: Parts, rows: Parts, times: Parts, touched: Counts) -> None:
    """Count, into zeros, the rows of each part that touch each column, int32 (columns, parts), and the columns that
    each part touches. Rows of no part (−1) are not counted."""
    for row in range(len(rows)):
        part = rows[row]
        if part >= 0:
            for edge in range(offsets[row], offsets[row + 1]):
                touched[part] += times[neighbours[edge], part] == 0
                times[neighbours[edge], part] += 1


@compiled
def sweep(
    offsets: Counts,
    neighbours: Parts,
    order: Parts,
    home: Parts,
    fee: float,
    rows: Parts,
    times: Parts,
    size: Counts,
    touched: Counts,
    least: int,
    most: int,
    power: float,
    push: float,
) -> int:
    """Look at each row of `order` once, move it to the best part for it, and return how many moved.

    A row that leaves part a for b is worth the columns of which it is a's only row, times a's weight, less those that b
    does not touch yet, times b's: a part's weight is (|N(U_i)| / mean) to the `power`. A row whose `home` is a part,
    and not −1, costs `fee` more wherever else it is. It moves if that is more than nothing; out of a part with more
    than `most` rows also at a loss of up to `push`, and for no fee. A row of no part (−1) always goes to the best. No
    part is taken above `most` rows, or below `least`.
    """
    k = len(size)
    new = np.empty(k, np.int64)
    mean = max(1.0, touched.mean())
    weight = (touched / mean) ** power
    moved = 0
    for row in order:
        a = rows[row]
        if a >= 0 and size[a] <= least:
            continue
        first, last = offsets[row], offsets[row + 1]
        new[:] = 0
        only = 0
        for edge in range(first, last):
            column = neighbours[edge]
            for b in range(k):
                new[b] += times[column, b] == 0
            if a >= 0:
                only += times[column, a] == 1
        crowded = a >= 0 and size[a] > most
        away = fee if home[row] >= 0 and not crowded else 0.0
        best, lowest = -1, np.inf
        for b in range(k):
            cost = weight[b] * new[b] + (away if b != home[row] else 0.0)
            if b != a and size[b] < most and (cost < lowest or (cost == lowest and size[b] < size[best])):
                best, lowest = b, cost
        if best < 0:
            continue
        if a >= 0:
            stays = weight[a] * only + (away if a != home[row] else 0.0)
            if stays - lowest <= (-push if crowded else 0.0):
                continue
            for edge in range(first, last):
                column = neighbours[edge]
                times[column, a] -= 1
                touched[a] -= times[column, a] == 0
            size[a] -= 1
            weight[a] = (touched[a] / mean) ** power
        for edge in range(first, last):
            column = neighbours[edge]
            touched[best] += times[column, best] == 0
            times[column, best] += 1
        size[best] += 1
        weight[best] = (touched[best] / mean) ** power
        rows[row] = best
        moved += 1
    return moved
