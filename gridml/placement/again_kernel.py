"""The loop of placing again: rows moved to where they leave fewer columns touched, if that is worth the move."""

from __future__ import annotations

import numpy as np

from gridml.placement.base import Parts
from gridml.placement.compiled import compiled
from gridml.placement.dense_counts import DenseCounts, WeighedRows, enter, leave
from gridml.placement.refine_kernel import Rooms, rise


@compiled
def sweep(
    graph: WeighedRows,
    order: Parts,
    home: Parts,
    fee: float,
    counts: DenseCounts,
    rooms: Rooms,
    power: float,
    push: float,
) -> int:
    """Look at each row of `order` once, move it to the best part for it, and return how many moved.

    A row that leaves part a for b is worth what Σ N_i·(N_i / mean)^`power` / (`power` + 1) falls by, where N_i is
    |N(U_i)|: as a loses the columns of which it is the only row, and b gets those that it does not touch yet. A row
    whose `home` is a part, and not −1, costs `fee` more wherever else it is. It moves if that is more than nothing; out
    of a part with more work than its `most` also at a loss of up to `push`, and for no fee. A row of no part (−1)
    always goes to the best. No part's work is taken above its `most`, or below its `least`.
    """
    times, touched, load = counts.times, counts.touched, counts.load
    k, (least, most, _) = len(load), rooms
    new = np.empty(k, np.int64)
    mean = max(1.0, touched.mean())
    moved = 0
    for row in order:
        a, work = counts.rows[row], graph.works[row]
        if a >= 0 and load[a] - work < least[a]:
            continue
        new[:] = 0
        only = 0
        for edge in range(graph.offsets[row], graph.offsets[row + 1]):
            column = graph.neighbours[edge]
            size = graph.sizes[column]
            for b in range(k):
                new[b] += size * (times[column, b] == 0)
            if a >= 0:
                only += size * (times[column, a] == 1)
        crowded = a >= 0 and load[a] > most[a]
        away = fee if home[row] >= 0 and not crowded else 0.0
        best, lowest = -1, np.inf
        for b in range(k):
            cost = rise(new[b], touched[b], b, None, mean, power) + (away if b != home[row] else 0.0)
            if b != a and load[b] + work <= most[b] and (cost < lowest or (cost == lowest and load[b] < load[best])):
                best, lowest = b, cost
        if best < 0:
            continue
        if a >= 0:
            stays = rise(only, touched[a] - only, int(a), None, mean, power) + (away if a != home[row] else 0.0)
            if stays - lowest <= (-push if crowded else 0.0):
                continue
            leave(row, graph, counts)
        enter(row, best, graph, counts)
        moved += 1
    return moved
