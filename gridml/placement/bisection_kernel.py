"""Kernels of bisection: `grow` builds one half greedily, `refine_bisection` moves rows between the halves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import Counts, Parts
from gridml.placement.bipartite import BothSides

Sides = NDArray[np.int8]
OUT = -1  # the `place` of a row that is in no heap


@compiled
def both_sides(offsets: Counts, neighbours: Parts, columns: int) -> BothSides:
    """Return the same as `Bipartite.both_sides`, but without scipy. Bisection divides about a thousand small graphs, on
    which the overhead of scipy took a tenth of the time of a placement."""
    begins = np.zeros(columns + 1, np.int64)
    for column in neighbours:
        begins[column + 1] += 1
    for column in range(columns):
        begins[column + 1] += begins[column]
    rows_of, at = np.empty(len(neighbours), np.int32), begins[:-1].copy()
    for row in range(len(offsets) - 1):
        for edge in range(offsets[row], offsets[row + 1]):
            rows_of[at[neighbours[edge]]] = row
            at[neighbours[edge]] += 1
    return BothSides(offsets, neighbours, begins, rows_of)


@compiled
def _before(one: int, other: int, gain: Counts, stamp: Counts) -> bool:
    """Return True if `one` is above `other` in a heap: it has the higher gain, or the same gain and a later stamp."""
    return bool(gain[one] > gain[other] or (gain[one] == gain[other] and stamp[one] > stamp[other]))


@compiled
def _rise(heap: Parts, place: Parts, at: int, gain: Counts, stamp: Counts) -> None:
    row = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        if not _before(row, heap[above], gain, stamp):
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = row
    place[row] = at


@compiled
def _sink(heap: Parts, count: int, place: Parts, at: int, gain: Counts, stamp: Counts) -> None:
    row = heap[at]
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and _before(heap[below + 1], heap[below], gain, stamp):
            below += 1
        if not _before(heap[below], row, gain, stamp):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = row
    place[row] = at


@compiled
def _take(heap: Parts, counts: Counts, side: int, place: Parts, row: int, gain: Counts, stamp: Counts) -> None:
    """Remove a row from its heap."""
    at = place[row]
    place[row] = OUT
    counts[side] -= 1
    last = heap[counts[side]]
    if last == row:
        return
    heap[at] = last
    place[last] = at
    _rise(heap, place, at, gain, stamp)
    _sink(heap, counts[side], place, place[last], gain, stamp)


@compiled
def _put(heap: Parts, counts: Counts, side: int, place: Parts, row: int, gain: Counts, stamp: Counts) -> None:
    heap[counts[side]] = row
    place[row] = counts[side]
    counts[side] += 1
    _rise(heap, place, place[row], gain, stamp)


class Crossing(NamedTuple):
    """The state of a pass, in which rows cross from one side to the other. All arrays change in place."""

    side: Sides  #: the side of each row, 0 or 1, int8 (rows,)
    inside: Parts  #: for each column, how many rows of each side touch it, int32 (columns, 2)
    gain: Counts  #: the decrease of the cut if the row crosses to the other side, int64 (rows,)
    stamp: Counts  #: the number of the last update of each row's gain, int64 (rows,)
    done: NDArray[np.bool_]  #: rows that do not move again in this pass
    heaps: Parts  #: a heap of rows for each side, with the highest gain on top, int32 (2, rows)
    counts: Counts  #: the number of rows in each heap, int64 (2,)
    place: Parts  #: the position of each row in its heap, or OUT, int32 (rows,)


@compiled
def _crossing(columns: int, side: Sides) -> Crossing:
    """Return the initial state, with empty heaps; `side` changes in place."""
    rows = len(side)
    return Crossing(
        side,
        np.zeros((columns, 2), np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.bool_),
        np.empty((2, rows), np.int32),
        np.zeros(2, np.int64),
        np.full(rows, OUT, np.int32),
    )


@compiled
def _cross(row: int, graph: BothSides, units: Counts, crossing: Crossing, time: int) -> int:
    """Move a row to the other side and update the gains of the rows that share columns with it. `time` is the number of
    updates so far; return its new value."""
    offsets, neighbours, begins, rows_of = graph
    side, inside, gain, stamp, done, heaps, counts, place = crossing
    a = side[row]
    b = 1 - a
    side[row] = b
    for edge in range(offsets[row], offsets[row + 1]):
        c = neighbours[edge]
        unit = units[c]
        inside[c, a] -= 1
        inside[c, b] += 1
        left, joined = inside[c, a], inside[c, b]
        if not (joined <= 2 or left <= 1):  # this column changes the gain of no other row
            continue
        for at in range(begins[c], begins[c + 1]):
            other = rows_of[at]
            if done[other]:
                continue
            change = 0
            if side[other] == a:
                if joined == 1:
                    change += unit  # b touches the column now, so a row that follows does not add it to b
                if left == 1:
                    change += unit  # `other` is now the only row of a that touches the column
            else:
                if joined == 2:
                    change -= unit  # `other` is no longer the only row of b that touches the column
                if left == 0:
                    change -= unit  # a no longer touches the column, and would again if `other` crossed
            if change == 0:
                continue
            gain[other] += change
            s = side[other]
            if place[other] == OUT:
                stamp[other] = time
                time += 1
                _put(heaps[s], counts, s, place, other, gain, stamp)
            else:
                stamp[other] = time
                time += 1
                _rise(heaps[s], place, place[other], gain, stamp)
                _sink(heaps[s], counts[s], place, place[other], gain, stamp)
    return time


@compiled
def _reckon(graph: BothSides, units: Counts, side: Sides, inside: Parts, gain: Counts, edge_of: Sides) -> int:
    """Compute `inside`, `gain`, and `edge_of`: 1 for each row with a column that both sides touch. Return the cut."""
    offsets, neighbours = graph.offsets, graph.neighbours
    inside[:] = 0
    for row in range(len(side)):
        for edge in range(offsets[row], offsets[row + 1]):
            inside[neighbours[edge], side[row]] += 1
    cut = 0
    for c in range(len(units)):
        if inside[c, 0] > 0 and inside[c, 1] > 0:
            cut += units[c]
    for row in range(len(side)):
        a = side[row]
        gain[row], edge_of[row] = 0, 0
        for edge in range(offsets[row], offsets[row + 1]):
            c = neighbours[edge]
            if inside[c, 1 - a] == 0:
                gain[row] -= units[c]
            else:
                edge_of[row] = 1
            if inside[c, a] == 1:
                gain[row] += units[c]
    return cut


@compiled
def _ahead(side: int, load: Counts, most: Counts) -> float:
    """Return a positive number if `side` is fuller than the other side, relative to the maximum size of each (`most`);
    a negative number if it is less full. The products are floats, because they can overflow int64."""
    return float(load[side]) * float(most[1 - side]) - float(load[1 - side]) * float(most[side])


@compiled
def refine_bisection(
    graph: BothSides,
    units: Counts,
    sizes: Counts,
    side: Sides,
    most: Counts,
    passes: int,
    patience: int,
) -> int:
    """Lower the cut, the weight of the columns that both sides touch (Fiduccia and Mattheyses, 1982). Return the new
    cut.

    In a pass each row crosses at most once. The row with the highest gain crosses first, even if that gain is negative.
    A pass ends after `patience` moves without an improvement, and is then rolled back to its best state. `side` int8
    (rows,) changes in place. `most` int64 (2,) is the maximum size of each side.
    """
    rows = len(side)
    crossing = _crossing(len(units), side)
    _, inside, gain, stamp, done, heaps, counts, place = crossing
    border = np.zeros(rows, np.int8)
    gone = np.empty(rows, np.int32)
    load = np.zeros(2, np.int64)
    for row in range(rows):
        load[side[row]] += sizes[row]
    cut = 0
    for _ in range(passes):
        cut = _reckon(graph, units, side, inside, gain, border)
        over = max(0, load[0] - most[0]) + max(0, load[1] - most[1])
        done[:] = False
        place[:] = OUT
        counts[:] = 0
        time = 0
        # Only rows at the border can lower the cut. If a side is too large, all rows are candidates.
        for row in range(rows):
            if border[row] or over > 0:
                stamp[row] = 0
                _put(heaps[side[row]], counts, int(side[row]), place, row, gain, stamp)
        best_cut, best_over, best_at, moves = cut, over, 0, 0
        best_gap = abs(_ahead(0, load, most))
        begun_cut, begun_over = cut, over
        while moves - best_at <= patience:
            chosen, from_side = -1, -1
            for a in range(2):
                if load[1 - a] > most[1 - a]:
                    continue
                while counts[a] > 0:
                    top = heaps[a, 0]
                    if load[1 - a] + sizes[top] <= most[1 - a]:
                        break
                    _take(heaps[a], counts, a, place, top, gain, stamp)
                    done[top] = True
                if counts[a] == 0:
                    continue
                top = heaps[a, 0]
                if chosen < 0 or gain[top] > gain[chosen] or (gain[top] == gain[chosen] and _ahead(a, load, most) > 0):
                    chosen, from_side = top, a
            # A side that is too large gives up rows first, whatever they cost.
            if load[0] > most[0] and counts[0] > 0:
                chosen, from_side = heaps[0, 0], 0
            elif load[1] > most[1] and counts[1] > 0:
                chosen, from_side = heaps[1, 0], 1
            if chosen < 0:
                break
            _take(heaps[from_side], counts, from_side, place, chosen, gain, stamp)
            done[chosen] = True
            cut -= gain[chosen]
            load[from_side] -= sizes[chosen]
            load[1 - from_side] += sizes[chosen]
            time = _cross(chosen, graph, units, crossing, time)
            gone[moves] = chosen
            moves += 1
            over = max(0, load[0] - most[0]) + max(0, load[1] - most[1])
            gap = abs(_ahead(0, load, most))
            if over < best_over or (over == best_over and (cut < best_cut or (cut == best_cut and gap < best_gap))):
                best_cut, best_over, best_at, best_gap = cut, over, moves, gap
        for at in range(best_at, moves):  # roll back to the best state
            row = gone[at]
            load[side[row]] -= sizes[row]
            side[row] = 1 - side[row]
            load[side[row]] += sizes[row]
        cut = best_cut
        if best_cut >= begun_cut and best_over >= begun_over:
            break
    return cut


@compiled
def grow(
    graph: BothSides,
    units: Counts,
    sizes: Counts,
    order: Parts,
    wanted: int,
    anywhere: bool,
) -> Sides:
    """Grow one half greedily. Return the side of each row, int8 (rows,): 0 for the rows that were taken.

    Rows are taken until their total size is about `wanted`. The first row of `order` is taken first, then always the
    row that adds least to the cut. With `anywhere` all rows are candidates, otherwise only rows that share a column
    with a row already taken.
    """
    rows = len(sizes)
    side = np.ones(rows, np.int8)
    crossing = _crossing(len(units), side)
    _, inside, gain, stamp, done, heaps, counts, place = crossing
    border = np.zeros(rows, np.int8)
    _reckon(graph, units, side, inside, gain, border)
    time = rows
    if anywhere:
        for at in range(rows):
            stamp[order[at]] = at
            _put(heaps[1], counts, 1, place, order[at], gain, stamp)
    load, at = 0, 0
    while load < wanted:
        if counts[1] == 0 or at == 0:
            while at < rows and done[order[at]]:
                at += 1
            if at == rows:
                break
            row = order[at]
            at += 1
            if place[row] != OUT:
                _take(heaps[1], counts, 1, place, row, gain, stamp)
        else:
            row = heaps[1, 0]
            _take(heaps[1], counts, 1, place, row, gain, stamp)
        done[row] = True
        if load > 0 and load + sizes[row] - wanted > wanted - load:  # nearer to `wanted` without the row
            continue
        load += sizes[row]
        time = _cross(row, graph, units, crossing, time)
    return side
