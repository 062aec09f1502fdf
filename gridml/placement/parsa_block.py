"""One block of rows dealt out to parts: Li, Andersen and Smola, Algorithm 3.

A part takes the row that brings it the fewest new columns. What each row costs each part is kept in an array, and so is
a lower bound for every group of rows: the least bound says where to look, and is put right if that row is gone. Two
searches among about √n numbers that lie side by side are quicker than the paper's list in the order of cost, in which
every row moves whose cost falls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import Ids
from gridml.placement.compiled import compiled
from gridml.placement.neighbour_sets import Words
from gridml.placement.parsa_numbering import Block
from gridml.placement.turns import Fill, next_part

Costs = NDArray[np.signedinteger[Any]]
# Byte j of entry b, as it lies in memory, is bit j of b: eight counters of a byte each are counted up by one addition.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
SPREAD: Words = _BITS.view(np.uint64).ravel()
_FULL = 255  # columns after which counters of a byte are emptied


def room_for_costs(parts: int, degrees: NDArray[np.int64]) -> Costs:
    """Return an array (parts, rows) of a type in which a cost of a row that is gone stays above all that are not."""
    small = int(degrees.max(initial=0)) <= np.iinfo(np.int16).max // 2
    return np.empty((parts, len(degrees)), np.int16 if small else np.int32)


@compiled
def deal(
    rows: Ids,
    block: Block,
    first_part: int,
    touched: Words,
    spread: Words,
    cost: Costs,
    gone: int,
    parts: Ids,
    fill: Fill | None = None,
) -> None:
    """Write the part of each of the `rows` of a block, int32 (n,), into `parts` (all of the graph's rows).

    Parts take turns, beginning with `first_part`, or with a `fill` as that says. Of rows that cost a part alike it
    takes the first. `touched` (m, words) are the parts that touch each of the block's columns before, as bits, and
    afterwards. `cost` (parts, n) is scratch, and `gone` the largest number that it holds.
    """
    n, k = len(rows), len(cost)
    _first_costs(block, touched, spread, cost)
    shift = 4  # a group of 2^shift rows for about as many groups
    while n >> 2 * shift:
        shift += 1
    groups = (n + (1 << shift) - 1) >> shift
    bound = np.empty((k, groups), cost.dtype)
    for part in range(k):
        for group in range(groups):
            bound[part, group] = _least(cost[part, group << shift : (group + 1) << shift])
    for turn in range(n):
        part = (first_part + turn) % k if fill is None else next_part(fill.load, fill.shares)
        of_part, bound_of_part = cost[part], bound[part]
        i = -1
        while i < 0:
            least = _least(bound_of_part)
            group = _where(bound_of_part, least)
            members = of_part[group << shift : (group + 1) << shift]
            i = _where(members, least)
            if i < 0:
                bound_of_part[group] = _least(members)
            else:
                i += group << shift
        for other in range(k):
            cost[other, i] = gone
        parts[rows[i]] = part
        if fill is not None:
            fill.load[part] += fill.weights[rows[i]]
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        for here in range(block.alone[i], block.alone[i + 1]):
            touched[here, word] |= bit
        for edge in range(block.begins[i], block.begins[i + 1]):
            here = block.inside[edge]
            if touched[here, word] & bit:
                continue
            touched[here, word] |= bit
            for at in range(block.first[here], block.first[here + 1]):
                j = block.sharing[at]
                less = of_part[j] - 1
                of_part[j] = less
                if less < bound_of_part[j >> shift]:
                    bound_of_part[j >> shift] = less


@compiled
def _least(numbers: Costs) -> Any:
    least = numbers[0]
    for at in range(len(numbers)):
        if numbers[at] < least:
            least = numbers[at]
    return least


@compiled
def _where(numbers: Costs, wanted: int) -> int:
    """The first place of a number, or −1."""
    for at in range(len(numbers)):
        if numbers[at] == wanted:
            return at
    return -1


@compiled
def _first_costs(block: Block, touched: Words, spread: Words, cost: Costs) -> None:
    """Write what each row would cost each part: the columns that the part does not touch yet."""
    k = len(cost)
    counters = np.zeros((k + 7) // 8, np.uint64)
    counted = counters.view(np.uint8)
    for i in range(len(block.begins) - 1):
        edge, after = block.begins[i], block.begins[i + 1]
        here, after_here = block.alone[i], block.alone[i + 1]
        for part in range(k):
            cost[part, i] = after - edge + after_here - here
        while edge < after or here < after_here:
            shared = min(_FULL, after - edge)
            alone = min(_FULL - shared, after_here - here)
            counters[:] = np.uint64(0)
            for at in range(edge, edge + shared):
                _count(touched, block.inside[at], spread, counters)
            for at in range(here, here + alone):
                _count(touched, at, spread, counters)
            for part in range(k):
                cost[part, i] -= counted[part]
            edge += shared
            here += alone


@compiled
def _count(touched: Words, column: int, spread: Words, counters: Words) -> None:
    for group in range(len(counters)):
        bits = (touched[column, group >> 3] >> np.uint64(8 * (group & 7))) & np.uint64(255)
        counters[group] += spread[bits]
