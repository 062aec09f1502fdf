"""The loops of refinement: who touches each column, and rows moved to where they leave fewer columns touched.

A pass asks of every column of a row two things: which parts touch it, and whether this row is the only one of its part
that does. Both are bits of one line of `state`, so that the counts themselves are read only where a row moves. Those
take no more room than the graph: a column that fewer rows than parts touch keeps the part of each of them, another one
a count for each part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.compiled import compiled

Words = NDArray[np.uint64]
Counts = NDArray[np.int64]
_FULL = 255  # columns after which counters of a byte are emptied


@compiled
def shared(offsets: Counts, neighbours: Parts, times: Parts) -> tuple[Counts, Parts, Parts, Parts]:
    """Return a graph without the columns that one row touches (`times`, int32 (columns,), says how many do).

    They are offsets, columns renumbered in the order in which they are met, how many columns each row has to itself,
    int32 (rows,), and how many rows touch each column that is left.
    """
    rows = len(offsets) - 1
    begins = np.empty(rows + 1, np.int64)
    edges = 0
    for edge in range(len(neighbours)):
        edges += times[neighbours[edge]] > 1
    inside = np.empty(edges, np.int32)
    alone = np.zeros(rows, np.int32)
    name = np.full(len(times), -1, np.int32)
    degrees = np.empty(len(times), np.int32)
    at, found = 0, 0
    for row in range(rows):
        begins[row] = at
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            if times[column] < 2:
                alone[row] += 1
                continue
            if name[column] < 0:
                name[column] = found
                degrees[found] = times[column]
                found += 1
            inside[at] = name[column]
            at += 1
    begins[rows] = at
    return begins, inside, alone, degrees[:found].copy()


@compiled
def count(begins: Counts, inside: Parts, parts: Parts, starts: Counts, slots: Parts, state: Words, k: int) -> None:
    """Fill `slots` and `state`, both of zeros, for rows that are in these parts.

    Column c has slots[starts[c]:starts[c + 1]]: k counts, or the parts of its fewer than k rows in any order. `state`
    (columns, 2·words) are first the parts that touch it, as bits, then those of which one row only does.
    """
    words = state.shape[1] // 2
    filled = np.zeros(len(starts) - 1, np.int32)
    for row in range(len(parts)):
        part = parts[row]
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        for edge in range(begins[row], begins[row + 1]):
            c = inside[edge]
            if starts[c + 1] - starts[c] == k:
                slots[starts[c] + part] += 1
            else:
                slots[starts[c] + filled[c]] = part
                filled[c] += 1
            if state[c, word] & bit:
                state[c, words + word] &= ~bit
            else:
                state[c, word] |= bit
                state[c, words + word] |= bit


@compiled
def shift(c: int, a: int, b: int, starts: Counts, slots: Parts, state: Words, touched: Counts) -> None:
    """A row that touches column `c` goes from part `a` to part `b`."""
    k, words = len(touched), state.shape[1] // 2
    first, last = starts[c], starts[c + 1]
    left, joined = 0, 0
    if last - first == k:
        slots[first + a] -= 1
        slots[first + b] += 1
        left, joined = slots[first + a], slots[first + b]
    else:
        moved = False
        for at in range(first, last):
            part = slots[at]
            if part == b:
                joined += 1
            elif part == a and moved:
                left += 1
            elif part == a:
                slots[at] = b
                moved = True
                joined += 1
    word, bit = a >> 6, np.uint64(1) << np.uint64(a & 63)
    if left == 0:
        state[c, word] &= ~bit
        state[c, words + word] &= ~bit
        touched[a] -= 1
    elif left == 1:
        state[c, words + word] |= bit
    word, bit = b >> 6, np.uint64(1) << np.uint64(b & 63)
    if joined == 1:
        state[c, word] |= bit
        state[c, words + word] |= bit
        touched[b] += 1
    elif joined == 2:
        state[c, words + word] &= ~bit


@compiled
def sweep(
    begins: Counts,
    inside: Parts,
    alone: Parts,
    sizes: Parts,
    order: Parts,
    parts: Parts,
    starts: Counts,
    slots: Parts,
    state: Words,
    spread: Words,
    touched: Counts,
    load: Counts,
    price: NDArray[np.float64],
    least: int,
    most: int,
    power: float,
    heat: float,
    push: float,
    seed: int,
) -> int:
    """Look at each row of `order` once, move it to the best part for it, and return how many moved.

    A row that leaves part a for b is worth the columns of which it is a's only row, times a's weight, less those that b
    does not touch yet, times b's: a part's weight is (|N(U_i)| / mean) to the `power`. Its place costs `price`, float64
    (parts,), times its size. It moves if that is more than nothing; with `heat`, also at a loss of x with probability
    e^(−x / heat); out of a part with more than `most`, at a loss of up to `push`. With `push` no other row moves. No
    part's `load`, the sum of the `sizes` of its rows, is taken above `most` or below `least`.
    """
    k, words = len(touched), state.shape[1] // 2
    groups = (k + 7) // 8
    counters = np.zeros(groups, np.uint64)
    present = np.zeros(groups * 8, np.int64)
    mean = max(1.0, touched.mean())
    weight = (touched / mean) ** power
    byte = np.uint64(255)
    random = np.uint64(seed * 2654435761 + 88172645463325252)
    moved = 0
    for row in order:
        a = parts[row]
        crowded = load[a] > most
        if load[a] - sizes[row] < least or (push > 0 and not crowded):
            continue
        first, last = begins[row], begins[row + 1]
        word, place = words + (a >> 6), np.uint64(a & 63)
        present[:] = 0
        only = np.uint64(0)
        begin = first
        while begin < last:
            end = min(last, begin + _FULL)
            for edge in range(begin, end):
                c = inside[edge]
                only += (state[c, word] >> place) & np.uint64(1)
                for group in range(groups):
                    counters[group] += spread[(state[c, group >> 3] >> np.uint64(8 * (group & 7))) & byte]
            for group in range(groups):
                for j in range(8):
                    present[group * 8 + j] += np.int64((counters[group] >> np.uint64(8 * j)) & byte)
                counters[group] = np.uint64(0)
            begin = end
        best, lowest = -1, np.inf
        for b in range(k):
            cost = weight[b] * (alone[row] + (last - first) - present[b]) + price[b] * sizes[row]
            if cost < lowest and b != a and load[b] + sizes[row] <= most:
                best, lowest = b, cost
        if best < 0:
            continue
        bar = 0.0
        if crowded:
            bar = -push
        if heat > 0:
            random ^= random << np.uint64(13)
            random ^= random >> np.uint64(7)
            random ^= random << np.uint64(17)
            bar += heat * np.log((np.float64(random >> np.uint64(11)) + 0.5) / 9007199254740992.0)
        stays = weight[a] * (alone[row] + np.int64(only)) + price[a] * sizes[row]
        if stays - lowest <= bar:
            continue
        for edge in range(first, last):
            shift(inside[edge], a, best, starts, slots, state, touched)
        parts[row] = best
        touched[a] -= alone[row]
        touched[best] += alone[row]
        load[a] -= sizes[row]
        load[best] += sizes[row]
        weight[a] = (touched[a] / mean) ** power
        weight[best] = (touched[best] / mean) ** power
        moved += 1
    return moved
