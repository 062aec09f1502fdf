"""Kernels of bisection: one half is grown, then rows move between halves, even at a loss, up to the best state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Counts, Parts
from gridml.placement.bipartite import BothSides
from gridml.placement.compiled import compiled

Sides = NDArray[np.int8]
OUT = -1  # of its heap


@compiled
def both_sides(offsets: Counts, neighbours: Parts, columns: int) -> BothSides:
    """Return what `Bipartite.both_sides` does: halving makes a thousand small graphs, for which scipy took a tenth of
    the time of a placement."""
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
    """Take a row out of its heap."""
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
    """Rows while some cross: the `side` of each, how many of each side are `inside` a column (columns, 2), what each
    row would `gain`, when that was put right last (`stamp`), which are `done` with, and a heap for each side, of
    `counts` rows, with the `place` of each row in its own."""

    side: Sides
    inside: Parts
    gain: Counts
    stamp: Counts
    done: NDArray[np.bool_]
    heaps: Parts
    counts: Counts
    place: Parts


@compiled
def _crossing(columns: int, side: Sides) -> Crossing:
    """Return rows of which none is in a heap; `side` is changed in place."""
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
    """Move a row to the other side, and put right what the others gain by doing so: of rows that gain the same the one
    that was put right last comes first. Return the time after."""
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
        if not (joined <= 2 or left <= 1):
            continue
        for at in range(begins[c], begins[c + 1]):
            other = rows_of[at]
            if done[other]:
                continue
            change = 0
            if side[other] == a:
                if joined == 1:
                    change += unit  # to b, where the column is now
                if left == 1:
                    change += unit  # the last that keeps it in a
            else:
                if joined == 2:
                    change -= unit  # no longer the only one of b
                if left == 0:
                    change -= unit  # a would have it again
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
    """Fill in how many rows of each side touch a column, and what each row gains by crossing; return what both touch.
    `edge_of` says which rows touch such a column."""
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
    """By how much a side is fuller than the other, for what each may have; products of weights can be past int64."""
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
    """Lower what both sides touch, by passes in which each row crosses once at most, the one that gains most or loses
    least first, and which go back to the best on the way (Fiduccia and Mattheyses, 1982). A pass ends after so many
    moves that brought nothing. Return what both touch; `side` int8 (rows,) changes in place."""
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
        for at in range(best_at, moves):
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
    """Return the side of each row, int8 (rows,): 0 for those taken, one by one, until they are as large as `wanted`.

    The first of `order` comes first, then always the one that brings fewest columns to be touched on both sides: of
    all rows, or, if not from `anywhere`, of those that share a column with one that is taken.
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
        if load > 0 and load + sizes[row] - wanted > wanted - load:
            continue
        load += sizes[row]
        time = _cross(row, graph, units, crossing, time)
    return side
