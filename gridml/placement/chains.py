"""Chains of moves: bring parts of equally heavy rows within exact bounds.

If all parts together have room for the rows and no more, a row that leaves an overfull part fits only into the few
parts that have room, wherever these are. That part may share no column with the row. So rows move along a chain of
parts: the overfull part gives a row to a second part, this gives another row to a third, and so on, until a part with
room. The cheapest chain is the shortest path between parts, where an edge is the cheapest single move between two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import Counts, PartRates, Parts
from gridml.placement.refine import Touches
from gridml.placement.refine_kernel import BITS, Aim, Bounds, TouchCounts, shift, slopes

# The cheapest moves are searched again after each chain, which changes their costs, unless the graph is so large that
# the searches would visit more than this number of edges; then one search serves several chains.
MAX_VISITED = 5_000_000
MAX_PARTS = 1024  # with more parts, the costs of moves between any two would need much memory

Costs = NDArray[np.float64]


def fit_by_chains(tally: Touches, bounds: Bounds, aim: Aim) -> None:
    """Move rows along chains of parts until no part has more rows than `bounds` allow. All rows must have the size 1.
    With very many parts, some can stay overfull; `refine.fit` moves the rest."""
    parts, edges = len(tally.load), len(tally.counts.inside)
    most = bounds.of(parts).most
    moved = int(parts <= MAX_PARTS)
    excess = int(np.maximum(tally.load - most, 0).sum())
    at_once = -(-excess // max(1, MAX_VISITED // max(1, edges)))
    while moved and (tally.load > most).any():
        cost, row = cheapest_moves(tally.counts, tally.units, tally.pace, aim)
        moved = move(tally.counts, tally.units, most, cost, row, at_once)


@compiled
def cheapest_moves(of: TouchCounts, units: Counts | None, pace: PartRates | None, aim: Aim) -> tuple[Costs, Parts]:
    """Return, for any two parts a and b, the lowest cost of a row's move from a to b, float64 (parts, parts), infinite
    if a has no row; and this row, int32 (parts, parts). A cost is at least 0: a move with a gain costs nothing."""
    k = len(of.touched)
    total = 0.0  # in a loop: functions of arrays such as sum make a process that finds machine code import a compiler
    for part in range(k):
        total += of.touched[part] if pace is None else pace.cost[part] * of.touched[part] + pace.fixed[part]
    mean = max(1.0, total / k)
    weight, bend, plain = np.empty(k), np.empty(k), np.full(k, aim.flat)
    for part in range(k):
        if pace is not None:
            plain[part] = aim.flat * pace.cost[part]
        weight[part], bend[part] = slopes(of.touched[part], part, pace, mean, aim.power)
    cost, best = np.full((k, k), np.inf), np.full((k, k), -1, np.int32)
    brought = np.empty(k, np.int64)
    for row in range(len(of.rows)):
        a = of.rows[row]
        freed = _brought(row, of, units, brought)
        saved = freed * (plain[a] + weight[a] * (1.0 - min(1.0, bend[a] * freed)))
        for b in range(k):
            if b != a:
                loss = max(0.0, brought[b] * (plain[b] + weight[b] * (1.0 + bend[b] * brought[b])) - saved)
                if loss < cost[a, b]:
                    cost[a, b], best[a, b] = loss, row
    return cost, best


@compiled
def _brought(row: int, of: TouchCounts, units: Counts | None, brought: Counts) -> int:
    """Write the weight of the row's columns that each other part does not touch, int64 (parts,), into `brought`. Return
    the weight of those that its own part would no longer touch without the row."""
    begins, inside, alone, rows, state = of.begins, of.inside, of.alone, of.rows, of.state
    a, words = rows[row], state.shape[1] // 2
    freed = alone[row]
    brought[:] = alone[row]
    for edge in range(begins[row], begins[row + 1]):
        column = inside[edge]
        unit = 1 if units is None else units[column]
        freed += unit * np.int64((state[column, words + a // BITS] >> (a % BITS)) & 1)
        for part in range(len(brought)):
            brought[part] += unit * (1 - np.int64((state[column, part // BITS] >> (part % BITS)) & 1))
    return int(freed)


@compiled
def move(of: TouchCounts, units: Counts | None, most: Counts, cost: Costs, row: Parts, at_most: int) -> int:
    """Move rows along the cheapest chains, `at_most` so many, while a part has more rows than `most`, int64 (parts,).
    Return the number of chains. `cost`, which changes, and `row` are those of `cheapest_moves`."""
    k = len(most)
    load, touched = of.load, of.touched
    brought, before, far, done = np.empty(k, np.int64), np.empty(k, np.int64), np.empty(k), np.empty(k, np.bool_)
    chains = 0
    while chains < at_most:
        # Dijkstra's shortest path from any overfull part to the nearest part with room.
        for part in range(k):
            far[part], before[part], done[part] = 0.0 if load[part] > most[part] else np.inf, -1, False
        end = -1
        while end < 0:
            near = -1
            for part in range(k):
                if not done[part] and far[part] < np.inf and (near < 0 or far[part] < far[near]):
                    near = part
            if near < 0:
                return chains
            done[near] = True
            if load[near] < most[near]:
                end = near
            for part in range(k):
                if not done[part] and far[near] + cost[near, part] < far[part]:
                    far[part], before[part] = far[near] + cost[near, part], near
        while before[end] >= 0:
            a = before[end]
            moving = row[a, end]
            freed = _brought(moving, of, units, brought)
            touched[a] -= freed
            touched[end] += brought[end]
            load[a] -= 1
            load[end] += 1
            inside = of.inside[of.begins[moving] : of.begins[moving + 1]]
            shift(inside, a, end, of.starts, of.slots, of.state, k)
            of.rows[moving] = end
            for part in range(k):
                if row[a, part] == moving:
                    cost[a, part] = np.inf  # another row must be found for it in the next round
            end = a
        chains += 1
    return chains
