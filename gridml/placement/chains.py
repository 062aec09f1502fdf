"""Chains and cycles of moves: bring parts of equally heavy rows within exact bounds, and improve them within these.

If all parts together have room for the rows and no more, a row that leaves an overfull part fits only into the few
parts that have room, wherever these are. That part may share no column with the row. So rows move along a chain of
parts: the overfull part gives a row to a second part, this gives another row to a third, and so on, until a part with
room. The cheapest chain is the shortest path between parts, where an edge is the cheapest single move between two.

In parts without room no row can move by itself, but along a cycle, each part gives a row to the next one, and all sizes
stay. A cycle of negative costs lowers the aim, and a cycle of two parts exchanges two rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import Counts, PartRates, Parts
from gridml.placement.parsa import SPREAD
from gridml.placement.refine import Touches
from gridml.placement.refine_kernel import BITS, FULL, Aim, Bounds, TouchCounts, Words, part_cost, rise, shift, slopes

# The cheapest moves are searched again after each round of chains or of cycles, which change their costs. On graphs so
# large that the searches would visit more than this number of edges, one search serves several chains, and there are
# fewer rounds of cycles.
MAX_VISITED = 5_000_000
MAX_PARTS = 1024  # with more parts, the costs of moves between any two would need much memory
MAX_CYCLE = 6  # maximum parts of a cycle: with four, the largest memory of 64 parts of a grid is 0.2% higher
MAX_ROUNDS = 50  # of cycles
MIN_ROUND = 5e-4  # the share by which a round must lower the worth, or it is the last
MAX_STARTS = 16  # parts from which a round searches cycles, those with the highest costs first
MAX_TRIES = 3  # cycles from a part that are tried in a round until one is a gain
REFRESH = 8  # searches that visit the same rows; those that reach the border of their part later are not among them
MIN_GAIN = 1e-9  # cycles with a lower gain are rounding errors, and could go round for ever

Costs = NDArray[np.float64]
Flags = NDArray[np.bool_]


def fit_by_chains(tally: Touches, bounds: Bounds, aim: Aim) -> None:
    """Move rows along chains of parts until no part has more rows than `bounds` allow. All rows must have the size 1.
    With very many parts, some can stay overfull; `refine.fit` moves the rest."""
    parts, edges = len(tally.load), len(tally.counts.inside)
    most = bounds.of(parts).most
    excess = int(np.maximum(tally.load - most, 0).sum())
    at_least = -(-excess // max(1, MAX_VISITED // max(1, edges)))
    search = _Search(tally, aim)
    moved = int(parts <= MAX_PARTS)
    while moved and (tally.load > most).any():
        cost, row = search.cheapest()
        moved = move(tally.counts, tally.units, most, cost, row, at_least)


def exchange_in_cycles(tally: Touches, aim: Aim) -> None:
    """Move rows along cycles of parts while that lowers the aim. All rows must have the size 1; sizes of parts stay."""
    parts = len(tally.load)
    search = _Search(tally, aim)
    worth = tally.worth(aim)
    for _ in range(min(MAX_ROUNDS, MAX_VISITED // max(1, len(tally.counts.inside), parts * parts))):
        cost, row = search.cheapest()
        starts = np.argsort(-tally.part_costs, kind="stable")[:MAX_STARTS]
        exchange(tally.counts, tally.units, tally.pace, aim, cost, row, starts)
        before, worth = worth, tally.worth(aim)
        if worth > before * (1 - MIN_ROUND):
            break


class _Search:
    """Searches the cheapest moves between parts, again and again."""

    def __init__(self, tally: Touches, aim: Aim) -> None:
        self._tally, self._aim = tally, aim
        self._visited = np.empty(0, np.int32)
        self._searches = 0

    def cheapest(self) -> tuple[Costs, Parts]:
        """Return (costs, rows) of `cheapest_moves`."""
        of = self._tally.counts
        if self._searches % REFRESH == 0:
            self._visited = border(of)
        self._searches += 1
        return cheapest_moves(of, self._tally.units, self._tally.pace, SPREAD, self._aim, self._visited)


@compiled
def border(of: TouchCounts) -> Parts:
    """Return the rows with columns that other parts touch, int32, and at least one row of each part."""
    begins, inside, rows, state = of.begins, of.inside, of.rows, of.state
    words = state.shape[1] // 2
    found, size = np.empty(len(rows), np.int32), 0
    seen = np.zeros(len(of.touched), np.bool_)
    for row in range(len(rows)):
        a = rows[row]
        own, bit = a // BITS, np.uint16(1 << (a % BITS))
        edge, last, elsewhere = begins[row], begins[row + 1], not seen[a]
        seen[a] = True
        while edge < last and not elsewhere:
            for word in range(words):
                elsewhere |= state[inside[edge], word] != (bit if word == own else 0)
            edge += 1
        if elsewhere:
            found[size] = row
            size += 1
    return found[:size].copy()


@compiled
def cheapest_moves(
    of: TouchCounts,
    units: Counts | None,
    pace: PartRates | None,
    spread: Words,
    aim: Aim,
    visited: Parts,
) -> tuple[Costs, Parts]:
    """Return, for any two parts a and b, the lowest change of the aim by a move of a row from a to b, float64
    (parts, parts), infinite if there is none; and this row, int32 (parts, parts).

    Only rows that are `visited` are considered. `spread` is `parsa.SPREAD`.
    """
    begins, inside, alone, rows, state, touched = of.begins, of.inside, of.alone, of.rows, of.state, of.touched
    k, words = len(touched), state.shape[1] // 2
    mean = _mean_cost(touched, pace)
    weight, bend, plain = np.empty(k), np.empty(k), np.full(k, aim.flat)
    for part in range(k):
        if pace is not None:
            plain[part] = aim.flat * pace.cost[part]
        weight[part], bend[part] = slopes(touched[part], part, pace, mean, aim.power)
    cost, best = np.full((k, k), np.inf), np.full((k, k), -1, np.int32)
    # Of each part, the row that is cheapest to move to a part that touches none of its columns.
    stranger, lowest = np.full(k, -1, np.int32), np.full(k, np.inf)
    all_brought, all_saved = np.zeros(k), np.zeros(k)
    present = np.zeros(2 * words * 8, np.int64)
    counters = np.zeros(2 * words, np.uint64)
    counted, byte = counters.view(np.uint8), np.uint64(255)
    for row in visited:
        a, first, last = rows[row], begins[row], begins[row + 1]
        own, place = words + a // BITS, a % BITS
        freed = everything = alone[row]
        present[:] = 0
        if units is not None:
            for edge in range(first, last):
                c = inside[edge]
                everything += units[c]
                freed += units[c] * np.int64((state[c, own] >> place) & 1)
                for part in range(k):
                    present[part] += units[c] * np.int64((state[c, part // BITS] >> (part % BITS)) & 1)
            first = last
        everything += last - first
        while first < last:
            end = min(last, first + FULL)
            counters[:] = 0
            for edge in range(first, end):
                c = inside[edge]
                freed += np.int64((state[c, own] >> place) & 1)
                for word in range(words):
                    touching = np.uint64(state[c, word])
                    if touching:
                        counters[2 * word] += spread[touching & byte]
                        counters[2 * word + 1] += spread[touching >> np.uint64(8)]
            for group in range(2 * words):
                if counters[group]:
                    for part in range(8 * group, 8 * group + 8):
                        present[part] += counted[part]
            first = end
        saved = freed * (plain[a] + weight[a] * (1.0 - min(1.0, bend[a] * freed)))
        if everything * (aim.flat + 1.0) - saved < lowest[a]:
            lowest[a], stranger[a] = everything * (aim.flat + 1.0) - saved, row
            all_brought[a], all_saved[a] = everything, saved
        for b in range(k):
            if present[b] and b != a:
                brought = everything - present[b]
                change = brought * (plain[b] + weight[b] * (1.0 + bend[b] * brought)) - saved
                if change < cost[a, b]:
                    cost[a, b], best[a, b] = change, row
    for a in range(k):
        for b in range(k):
            brought = all_brought[a]
            change = brought * (plain[b] + weight[b] * (1.0 + bend[b] * brought)) - all_saved[a]
            if a != b and stranger[a] >= 0 and change < cost[a, b]:
                cost[a, b], best[a, b] = change, stranger[a]
    return cost, best


@compiled
def _mean_cost(touched: Counts, pace: PartRates | None) -> float:
    total = 0.0  # in a loop: functions of arrays such as sum make a process that finds machine code import a compiler
    for part in range(len(touched)):
        total += part_cost(touched[part], part, pace)
    return max(1.0, total / len(touched))


@compiled
def _relocate(of: TouchCounts, units: Counts | None, row: int, b: int) -> None:
    """Move a row to part b."""
    begins, inside, rows, state = of.begins, of.inside, of.rows, of.state
    a, words = rows[row], state.shape[1] // 2
    freed = brought = of.alone[row]
    for edge in range(begins[row], begins[row + 1]):
        c = inside[edge]
        unit = 1 if units is None else units[c]
        freed += unit * np.int64((state[c, words + a // BITS] >> (a % BITS)) & 1)
        brought += unit * (1 - np.int64((state[c, b // BITS] >> (b % BITS)) & 1))
    of.touched[a] -= freed
    of.touched[b] += brought
    of.load[a] -= 1
    of.load[b] += 1
    shift(inside[begins[row] : begins[row + 1]], a, b, of.starts, of.slots, state, len(of.touched))
    rows[row] = b


@compiled
def move(of: TouchCounts, units: Counts | None, most: Counts, cost: Costs, row: Parts, at_least: int) -> int:
    """Move rows along the cheapest chains while a part has more rows than `most`, int64 (parts,). Return the number of
    chains.

    A move changes the costs of its parts, so no part is in two chains, unless there are fewer than `at_least`. `cost`,
    which changes, and `row` are those of `cheapest_moves`; a move with a gain costs nothing here.
    """
    k = len(most)
    load = of.load
    before, far, done, used = np.empty(k, np.int64), np.empty(k), np.empty(k, np.bool_), np.zeros(k, np.bool_)
    chains, at_reset = 0, -1
    while True:
        # Dijkstra's shortest path from any overfull part to the nearest part with room.
        for part in range(k):
            far[part] = 0.0 if load[part] > most[part] and not used[part] else np.inf
            before[part], done[part] = -1, used[part]
        end, near = -1, 0
        while end < 0 and near >= 0:
            near = -1
            for part in range(k):
                if not done[part] and far[part] < np.inf and (near < 0 or far[part] < far[near]):
                    near = part
            if near >= 0:
                done[near] = True
                end = near if load[near] < most[near] else -1
                for part in range(k):
                    further = far[near] + max(0.0, cost[near, part])
                    if not done[part] and further < far[part]:
                        far[part], before[part] = further, near
        if end < 0:
            if chains >= at_least or chains == at_reset:
                return chains
            used[:], at_reset = False, chains
            continue
        used[end] = True
        while before[end] >= 0:
            a, moving = before[end], row[before[end], end]
            _relocate(of, units, moving, end)
            for part in range(k):
                if row[a, part] == moving:
                    cost[a, part] = np.inf  # another row must be found for it in the next search
            used[a], end = True, a
        chains += 1


@compiled
def exchange(
    of: TouchCounts,
    units: Counts | None,
    pace: PartRates | None,
    aim: Aim,
    cost: Costs,
    row: Parts,
    starts: Counts,
) -> int:
    """Move rows along cycles of at most MAX_CYCLE parts that lower the aim, and return the number of cycles.

    `cost` and `row` are those of `cheapest_moves`; cycles from the first of the `starts`, int64, are searched first.

    No part is in two cycles. The costs of the moves of a cycle add up to its change of the aim only if its rows share
    no columns and free few, so the change is computed once they have moved. If it is not a gain the rows move back, and
    another cycle is tried.
    """
    touched, k = of.touched, len(of.touched)
    mean = _mean_cost(touched, pace)
    used = np.zeros(k, np.bool_)
    far, before = np.empty((MAX_CYCLE + 1, k)), np.empty((MAX_CYCLE + 1, k), np.int64)
    cycle, was = np.empty(MAX_CYCLE + 1, np.int64), np.empty(MAX_CYCLE, np.int64)
    moving = np.empty(MAX_CYCLE, np.int32)
    cycles = 0
    for start in starts:
        tries = 0
        while tries < MAX_TRIES and not used[start]:
            length = _cheapest_cycle(start, cost, used, far, before, cycle)
            if length == 0:
                break
            for at in range(length):
                moving[at], was[at] = row[cycle[at], cycle[at + 1]], touched[cycle[at]]
            for at in range(length):
                _relocate(of, units, moving[at], cycle[at + 1])
            change = 0.0
            for at in range(length):
                part, more = cycle[at], touched[cycle[at]] - was[at]
                change += more * aim.flat * (1.0 if pace is None else pace.cost[part])
                change += rise(more, was[at], part, pace, mean, aim.power)
            if change < -MIN_GAIN:
                for at in range(length):
                    used[cycle[at]] = True
                cycles += 1
            else:
                for at in range(length):
                    _relocate(of, units, moving[at], cycle[at])
                    cost[cycle[at], cycle[at + 1]] = np.inf
            tries += 1
    return cycles


@compiled
def _cheapest_cycle(start: int, cost: Costs, used: Flags, far: Costs, before: Counts, cycle: Counts) -> int:
    """Write a cycle of parts that are not `used`, from `start` to `start`, into `cycle`, int64 (MAX_CYCLE + 1,), and
    return the number of its moves; 0 if no cycle of negative costs was found.

    `far`, float64 (MAX_CYCLE + 1, parts), and `before`, int64 of the same shape, are overwritten.
    """
    k = len(cost)
    # far[n, b] is the lowest cost of a path of n moves from `start` to b that was found without passing b before.
    far[:] = np.inf
    far[0, start] = 0.0
    length, lowest = 0, -MIN_GAIN
    for step in range(1, MAX_CYCLE + 1):
        for c in range(k):
            if far[step - 1, c] == np.inf or (step > 1 and c == start):
                continue
            for b in range(k):
                further = far[step - 1, c] + cost[c, b]
                if further < far[step, b] and not used[b]:
                    at, passed = c, False
                    for earlier in range(step - 1, 0, -1):
                        passed |= at == b
                        at = before[earlier, at]
                    if not passed:
                        far[step, b], before[step, b] = further, c
        if far[step, start] < lowest:
            length, lowest = step, far[step, start]
    cycle[length] = start
    for step in range(length, 0, -1):
        cycle[step - 1] = before[step, cycle[step]]
    return length
