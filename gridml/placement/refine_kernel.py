"""The loops of refinement: who touches each column, and rows moved to where they leave fewer columns touched.

A pass asks of every column of a row two things: which parts touch it, and whether this row is the only one of its part
that does. Both are bits of one line of `state`, so that the counts themselves are read only where a row moves. Those
take no more room than the graph: a column that fewer rows than parts touch keeps the part of each of them, another one
a count for each part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import UNLIMITED, Counts, PartRates, Parts
from gridml.placement.compiled import compiled

Words = NDArray[np.uint64]
Bits = NDArray[np.uint16]
BITS = 16  # parts of a word: most graphs are placed on so many, and four bytes a column stay in the caches
_FULL = 255  # columns after which counters of a byte are emptied
_BENT = 0.03  # half of a weight's change by one row's move, above which differences are exact
_FAR = 12.0  # heats of loss that no draw allows, but one in 160,000


class Rooms(NamedTuple):
    """The `least` and the `most` of each part's size, int64 (parts,), and the most that a part may touch."""

    least: Counts
    most: Counts
    limit: int


class Bounds(NamedTuple):
    """The least and the most of a part's size, of all parts or int64 (parts,), and the most that a part may touch."""

    least: int | Counts
    most: int | Counts
    limit: int = UNLIMITED

    def of(self, parts: int) -> Rooms:
        """The same for each of so many parts."""
        least, most = (np.full(parts, size, np.int64) for size in (self.least, self.most))
        return Rooms(least, most, self.limit)


class Aim(NamedTuple):
    """What passes lower: Σ N_i·(N_i / mean)^`power` / (`power` + 1) + `flat`·Σ N_i, where N_i is |N(U_i)| and the mean
    that of a pass's beginning. With a power the largest parts decide; those that are far below it only count flatly.
    With a `Pace` N_i is what the part has to bear for |N(U_i)|."""

    power: int
    flat: float = 0.0


class Pass(NamedTuple):
    """One pass over the rows."""

    order: Parts
    heat: float
    push: float
    seed: int


class TouchCounts(NamedTuple):
    """Who touches what while rows move: the arrays change in place.

    The graph, without columns that one row touches: `begins` int64 (rows + 1,) and `inside` int32 (edges,), and how
    many columns more each row has `alone`, or what they weigh, int64 (rows,). `sizes` int32 or int64 (rows,) is how
    much each row counts in the size of its part. `rows` int32 (rows,) is the part of each. `starts` int64
    (columns + 1,), `slots` int32 and `state` uint16 (columns, 2·words) are as `count` has them. `touched` int64
    (parts,) is |N(U_i)|, `load` int64 (parts,) the size of each part, `price` float64 (parts,) what a row's place costs
    there, in columns for each of its size.
    """

    begins: Counts
    inside: Parts
    alone: Counts
    sizes: Parts | Counts
    rows: Parts
    starts: Counts
    slots: Parts
    state: Bits
    touched: Counts
    load: Counts
    price: NDArray[np.float64]


@compiled
def shared(
    offsets: Counts, neighbours: Parts, times: Parts, weights: Counts | None
) -> tuple[Counts, Parts, Counts, Parts, Counts]:
    """Return a graph without the columns that one row touches (`times`, int32 (columns,), says how many do).

    They are offsets, columns renumbered in the order in which they are met, how many columns each row has to itself,
    int64 (rows,), how many rows touch each column that is left, and how much that weighs, int64. Without `weights`,
    int64 (columns,), each column counts one, and the last is empty.
    """
    rows = len(offsets) - 1
    begins = np.empty(rows + 1, np.int64)
    edges = 0
    for edge in range(len(neighbours)):
        edges += times[neighbours[edge]] > 1
    inside = np.empty(edges, np.int32)
    alone = np.zeros(rows, np.int64)
    name = np.full(len(times), -1, np.int32)
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
    """Fill `slots` and `state`, both of zeros, for rows that are in these parts.

    Column c has slots[starts[c]:starts[c + 1]]: k counts, or the parts of its fewer than k rows in any order. `state`
    (columns, 2·words) are first the parts that touch it, as bits, then those of which one row only does.
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
    """A row that touches these columns goes from part `a` to part `b`, of `k`."""
    words = state.shape[1] // 2
    word_a, bit_a, word_b, bit_b = a >> 4, np.uint16(1 << (a & 15)), b >> 4, np.uint16(1 << (b & 15))
    for c in columns:
        first, last = starts[c], starts[c + 1]
        if last - first == k:
            slots[first + a] -= 1
            slots[first + b] += 1
            left, joined = slots[first + a], slots[first + b]
        else:
            # No branches: which of the parts stands where is not to be foretold.
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
    """Look at each row of an order once, move it to the best part for it, and return how many moved.

    A row that leaves part a for b gains what the `aim` falls by as |N(U_a)| loses the columns of which it is a's only
    row, less what it rises by as |N(U_b)| gets those that b does not touch yet; its place costs a part's price times
    its size. It moves if it gains; with `heat`, also at a loss of x with probability e^(−x / heat); out of a part with
    more than `most`, or that touches more than `limit`, at a loss of up to `push`. With `push` no other row moves. No
    part's load is taken above its `most` or below its `least`, and none comes to touch more than `limit`. A row whose
    columns no other part touches stays, unless its part has too many. `units` are what columns weigh, None: one each.

    A row of very many columns changes the weights of both parts by its move, so that by their slopes alone it would go
    to and fro for ever: rises and falls are reckoned as differences, to the second order where they are slight.
    """
    # Taken out of the tuple once: each time that numba does so it counts a reference. Units and the pace are no part of
    # it: what is done only with them, or without, is left out of the machine code for arguments alone.
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
        mean += _part_cost(touched[part], part, pace)
    mean = max(1.0, mean / k)
    weight, bend, plain = np.empty(k), np.empty(k), np.empty(k)
    for part in range(k):
        plain[part] = flat if pace is None else flat * pace.cost[part]
        weight[part], bend[part] = _slopes(touched[part], part, pace, mean, power)
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
            end = min(last, begin + _FULL)
            if groups == 2:  # from 9 to 16 parts: counters that stay in registers
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
        if bend[near] * brought > _BENT:  # as differences costs are more, and so are those that are above this one
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
            weight[changed], bend[changed] = _slopes(touched[changed], int(changed), pace, mean, power)
        moved += 1
    return moved


@compiled
def _part_cost(touched: float, part: int, pace: PartRates | None) -> float:
    """What a part has to bear that touches so much."""
    if pace is None:
        return float(touched)
    return float(pace.cost[part] * touched + pace.fixed[part])


@compiled
def _slopes(touched: int, part: int, pace: PartRates | None, mean: float, power: int) -> tuple[float, float]:
    """Return what a column more costs a part that touches so much, and the rise of that."""
    part_costs = _part_cost(touched, part, pace)
    weight, bend = (part_costs / mean) ** power, power / (2.0 * max(1.0, part_costs))
    if pace is None:
        return weight, bend
    return weight * pace.cost[part], bend * pace.cost[part]


@compiled
def rise(more: float, touched: int, part: int, pace: PartRates | None, mean: float, power: float) -> float:
    """What so many columns more cost a part that touches so much, as a difference."""
    before, after = _part_cost(touched, part, pace), _part_cost(touched + more, part, pace)
    return float((after * (after / mean) ** power - (before / mean) ** power * before) / (power + 1.0))
