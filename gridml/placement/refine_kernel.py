"""Kernels of refinement: count the rows of each part that touch a column, and move rows to lower what parts touch.

For each column of a row a pass must know which parts touch the column, and whether this row is the only row of its part
that touches it. Both are bits of the column's line of `state`, so the counts are only read when a row moves. The counts
take no more memory than the graph: a column with fewer rows than parts stores the part of each row, any other column
stores a count for each part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import UNLIMITED, Counts, PartRates, Parts

Words = NDArray[np.uint64]
Bits = NDArray[np.uint16]
BITS = 16  # parts per word of `state`; the usual 16 parts take 4 bytes per column, which fit the caches
FULL = 255  # the columns that a counter of one byte can count before it must be read and cleared
_BENT = 0.03  # the exact change is computed if a move changes a part's slope (`slopes`) by over twice this fraction
_FAR = 12.0  # losses above this multiple of the heat are rejected at once; a draw would accept 1 in 160,000


class Rooms(NamedTuple):
    """The bounds of each part."""

    least: Counts  #: minimum size of each part, int64 (parts,)
    most: Counts  #: maximum size of each part, int64 (parts,)
    limit: int  #: maximum weight of the columns that any part touches


class Bounds(NamedTuple):
    """The same bounds as `Rooms`, where one number can stand for all parts."""

    least: int | Counts  #: minimum size of a part
    most: int | Counts  #: maximum size of a part
    limit: int = UNLIMITED  #: maximum weight of the columns that any part touches

    def of(self, parts: int) -> Rooms:
        """Return the bounds of each part; `parts` is the number of parts."""
        least, most = (np.full(parts, size, np.int64) for size in (self.least, self.most))
        return Rooms(least, most, self.limit)


class Aim(NamedTuple):
    """The objective that passes lower: Σ N_i·(N_i / mean)^power / (power + 1) + flat·Σ N_i.

    N_i is |N(U_i)|, the weight of the columns that part i touches; with `PartRates` it is the cost of part i. The mean
    of N_i is taken at the start of a pass.
    """

    power: int  #: with a higher power the largest parts dominate more
    flat: float = 0.0  #: the weight of the plain sum: with it, parts far below the largest count too


class Pass(NamedTuple):
    """One pass over the rows."""

    order: Parts  #: the rows to visit, int32
    heat: float  #: temperature of annealing: a loss of x is accepted with probability e^(−x / heat), in column weights
    push: float  #: the largest loss accepted to move a row out of a part that exceeds its bounds, in column weights
    seed: int


class TouchCounts(NamedTuple):
    """The graph without the columns that only one row touches, and what each part touches while rows move."""

    begins: Counts  #: offsets of rows into `inside`, int64 (rows + 1,)
    inside: Parts  #: the columns of each row, renumbered, int32 (edges,)
    alone: Counts  #: the weight of the columns that only this row touches, int64 (rows,)
    sizes: Parts | Counts  #: the size that each row adds to its part, int32 or int64 (rows,)
    # All arrays below change in place, only by `sweep`.
    rows: Parts  #: the part of each row, int32 (rows,)
    starts: Counts  #: offsets of columns into `slots`, int64 (columns + 1,); constant
    slots: Parts  #: the counts or parts of each column, see `count`, int32
    state: Bits  #: the bit sets of each column, see `count`, uint16 (columns, 2·words)
    touched: Counts  #: |N(U_i)|, the weight of the columns that each part touches, int64 (parts,)
    load: Counts  #: the size of each part, int64 (parts,)
    price: NDArray[np.float64]  #: what a row pays to be in each part, in columns per unit of its size, float64 (parts,)


@compiled
def shared(
    offsets: Counts, neighbours: Parts, times: Parts, weights: Counts | None
) -> tuple[Counts, Parts, Counts, Parts, Counts]:
    """Remove the columns that a single row touches; `times` int32 (columns,) is the number of rows of each column.

    Return five arrays: the offsets of rows; their columns, renumbered in the order of their first edge; the weight of
    the columns removed from each row, int64 (rows,); the number of rows of each remaining column; and the weight of
    each remaining column, int64. Without `weights` int64 (columns,) each column counts 1, and the last array is empty.
    """
    rows = len(offsets) - 1
    begins = np.empty(rows + 1, np.int64)
    edges = 0
    for edge in range(len(neighbours)):
        edges += times[neighbours[edge]] > 1
    inside = np.empty(edges, np.int32)
    alone = np.zeros(rows, np.int64)
    name = np.full(len(times), -1, np.int32)  # the new number of each column
    degrees = np.empty(len(times), np.int32)
    units = np.empty(0 if weights is None else len(times), np.int64)
    at, found = 0, 0
    for row in range(rows):
        begins[row] = at
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            if times[column] < 2:
                alone[row] += 1 if weights is None else weights[column]
                continue
            if name[column] < 0:
                name[column] = found
                degrees[found] = times[column]
                if weights is not None:
                    units[found] = weights[column]
                found += 1
            inside[at] = name[column]
            at += 1
    begins[rows] = at
    return begins, inside, alone, degrees[:found].copy(), units[:found].copy()


@compiled
def count(begins: Counts, inside: Parts, parts: Parts, starts: Counts, slots: Parts, state: Bits, k: int) -> None:
    """Fill `slots` and `state`, which must be zeros, from the part of each row; `k` is the number of parts.

    Column c owns slots[starts[c]:starts[c + 1]]. These are k counts of rows, one for each part; or, if the column has
    fewer than k rows, the parts of its rows in any order. In line c of `state` (columns, 2·words), the first half has a
    bit for each part that touches the column; the second half has a bit for each part of which only one row touches it.
    """
    words = state.shape[1] // 2
    filled = np.zeros(len(starts) - 1, np.int32)
    for row in range(len(parts)):
        part = parts[row]
        word, bit = part >> 4, np.uint16(1 << (part & 15))
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
def shift(columns: Parts, a: int, b: int, starts: Counts, slots: Parts, state: Bits, k: int) -> None:
    """Update `slots` and `state` after a row with these columns has moved from part `a` to part `b` of `k` parts."""
    words = state.shape[1] // 2
    word_a, bit_a, word_b, bit_b = a >> 4, np.uint16(1 << (a & 15)), b >> 4, np.uint16(1 << (b & 15))
    for c in columns:
        first, last = starts[c], starts[c + 1]
        if last - first == k:
            slots[first + a] -= 1
            slots[first + b] += 1
            left, joined = slots[first + a], slots[first + b]
        else:
            # No branches: the order of parts is random, so a branch would be mispredicted.
            left, joined, leaves = -1, 1, first
            for at in range(first, last):
                part = slots[at]
                left += part == a
                joined += part == b
                leaves = at if part == a else leaves
            slots[leaves] = b
        touch, single = state[c, word_a] & ~bit_a, state[c, words + word_a] & ~bit_a
        state[c, word_a] = touch | bit_a if left > 0 else touch
        state[c, words + word_a] = single | bit_a if left == 1 else single
        state[c, word_b] |= bit_b
        single = state[c, words + word_b] & ~bit_b
        state[c, words + word_b] = single | bit_b if joined == 1 else single


@compiled
def sweep(
    of: TouchCounts,
    units: Counts | None,
    pace: PartRates | None,
    spread: Words,
    rooms: Rooms,
    aim: Aim,
    once: Pass,
) -> int:
    """Visit each row of an order once and move it to its best part. Return the number of moves.

    A move from part a to part b lowers the `aim`, because a no longer touches the columns that only this row touched
    there. It also raises the `aim`, because b then touches columns of the row that b did not touch before. The gain is
    the decrease minus the increase, plus the difference of prices: a row pays its part's price times its own size.

    A row moves if its gain is positive; with `heat`, also at a loss of x with probability e^(−x / heat). A part exceeds
    its bounds if its load is above `most` or it touches more than `limit`; rows leave it at a loss of up to `push`. If
    `push` is not 0, no other rows move. A move never raises a load above `most`, lowers one below `least`, or makes a
    part touch more than `limit`. A row whose columns no other part touches stays, unless its part exceeds its bounds.

    `units` are the weights of columns; None: 1 each. `spread` is `parsa.SPREAD`.
    """
    # numba counts a reference each time an array is read from a tuple, so the tuple is unpacked once. `units` and
    # `pace` are separate arguments, because numba removes the branches of `is None` only for plain arguments.
    begins, inside, alone, sizes, rows, starts, slots, state, touched, load, price = of
    least, most, limit = rooms
    order, heat, push, seed = once
    power, flat = aim
    k, words = len(touched), state.shape[1] // 2
    groups = (k + 7) // 8
    counters, present, cost = np.zeros(groups, np.uint64), np.empty(k), np.empty(k)
    counted = counters.view(np.uint8)
    mean = 0.0
    for part in range(k):
        mean += part_cost(touched[part], part, pace)
    mean = max(1.0, mean / k)
    weight, bend, plain = np.empty(k), np.empty(k), np.empty(k)
    for part in range(k):
        plain[part] = flat if pace is None else flat * pace.cost[part]
        weight[part], bend[part] = slopes(touched[part], part, pace, mean, power)
    byte = np.uint64(255)
    random = np.uint64(seed * 2654435761 + 88172645463325252)
    moved = 0
    for row in order:
        a, size = rows[row], sizes[row]
        crowded, over = load[a] > most[a], touched[a] > limit
        if load[a] - size < least[a] or (push > 0 and not crowded and not over):
            continue
        first, last = begins[row], begins[row + 1]
        word = a >> 4
        if not crowded and not over and first < last:
            bit, edge, elsewhere = np.uint16(1 << (a & 15)), first, False
            while edge < last and not elsewhere:
                for at in range(words):
                    elsewhere |= state[inside[edge], at] != (bit if at == word else 0)
                edge += 1
            if not elsewhere:
                continue
        place, only = np.uint64(a & 15), np.uint64(0)
        word += words
        present[:] = 0.0
        everything = np.float64(alone[row] + last - first)
        if units is not None:
            everything = np.float64(alone[row])
            for edge in range(first, last):
                c = inside[edge]
                everything += units[c]
                only += ((np.uint64(state[c, word]) >> place) & np.uint64(1)) * np.uint64(units[c])
                for b in range(k):
                    if (state[c, b >> 4] >> (b & 15)) & 1:
                        present[b] += units[c]
        begin = first if units is None else last
        while begin < last:
            end = min(last, begin + FULL)
            if groups == 2:  # 9 to 16 parts: the counters stay in registers
                low, high = np.uint64(0), np.uint64(0)
                for edge in range(begin, end):
                    c = inside[edge]
                    only += (np.uint64(state[c, 1]) >> place) & np.uint64(1)
                    touching = np.uint64(state[c, 0])
                    low += spread[touching & byte]
                    high += spread[touching >> np.uint64(8)]
                counters[0], counters[1] = low, high
            else:
                counters[:] = np.uint64(0)
                for edge in range(begin, end):
                    c = inside[edge]
                    only += (np.uint64(state[c, word]) >> place) & np.uint64(1)
                    for group in range(groups):
                        touching = np.uint64(state[c, group >> 1]) >> np.uint64(8 * (group & 1))
                        counters[group] += spread[touching & byte]
            for b in range(k):
                present[b] += counted[b]
            begin = end
        for b in range(k):
            brought = everything - present[b]
            risen = brought * (plain[b] + weight[b] * (1.0 + bend[b] * brought)) + price[b] * size
            cost[b] = risen if load[b] + size <= most[b] else np.inf
        cost[a] = np.inf
        if limit < UNLIMITED:
            for b in range(k):
                if touched[b] + (everything - present[b]) > limit:
                    cost[b] = np.inf
        best, lowest = -1, np.inf
        for b in range(k):
            if cost[b] < lowest:
                best, lowest = b, cost[b]
        if best < 0:
            continue
        near, brought = best, everything - present[best]
        if bend[near] * brought > _BENT:
            # A move of very many columns changes the weights of both parts so much that, with approximate costs, the
            # row would move back and forth for ever. Exact costs are never lower than approximate ones, so only parts
            # whose approximate cost is at most the exact cost of this part are candidates.
            lowest = brought * plain[near] + rise(brought, touched[near], near, pace, mean, power) + price[near] * size
            for b in range(k):
                if cost[b] <= lowest and b != near:
                    exact, brought = cost[b], everything - present[b]
                    if bend[b] * brought > _BENT:
                        exact = brought * plain[b] + rise(brought, touched[b], b, pace, mean, power) + price[b] * size
                    if exact < lowest or (exact == lowest and b < best):
                        best, lowest = b, exact
        freed = np.float64(alone[row] + np.int64(only))
        pushed = crowded or (over and freed > 0)
        if push > 0 and not pushed:
            continue
        if bend[a] * freed > _BENT:
            fall = -rise(-freed, touched[a], a, pace, mean, power)
        else:
            fall = freed * weight[a] * (1.0 - bend[a] * freed)
        gain = freed * plain[a] + fall + price[a] * size - lowest
        if gain <= 0.0:
            bar = -push if pushed else 0.0
            if heat > 0 and gain > bar - _FAR * heat:
                random ^= random << np.uint64(13)
                random ^= random >> np.uint64(7)
                random ^= random << np.uint64(17)
                bar += heat * np.log((np.float64(random >> np.uint64(11)) + 0.5) / 9007199254740992.0)
            if gain <= bar:
                continue
        shift(inside[first:last], a, best, starts, slots, state, k)
        rows[row] = best
        touched[a] -= np.int64(freed)
        touched[best] += np.int64(everything - present[best])
        load[a] -= size
        load[best] += size
        for changed in (np.int64(a), np.int64(best)):
            weight[changed], bend[changed] = slopes(touched[changed], int(changed), pace, mean, power)
        moved += 1
    return moved


@compiled
def part_cost(touched: float, part: int, pace: PartRates | None) -> float:
    """The cost of a part that touches this much."""
    if pace is None:
        return float(touched)
    return float(pace.cost[part] * touched + pace.fixed[part])


@compiled
def slopes(touched: int, part: int, pace: PartRates | None, mean: float, power: int) -> tuple[float, float]:
    """Return the increase of the aim, without its `flat` term, by one more column in a part, and half the relative
    growth of that increase per column."""
    part_costs = part_cost(touched, part, pace)
    weight, bend = (part_costs / mean) ** power, power / (2.0 * max(1.0, part_costs))
    if pace is None:
        return weight, bend
    return weight * pace.cost[part], bend * pace.cost[part]


@compiled
def rise(more: float, touched: int, part: int, pace: PartRates | None, mean: float, power: float) -> float:
    """Return the exact increase of the aim, without its `flat` term, if a part touches `more` additional columns."""
    before, after = part_cost(touched, part, pace), part_cost(touched + more, part, pace)
    return float((after * (after / mean) ** power - (before / mean) ** power * before) / (power + 1.0))
