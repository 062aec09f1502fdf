"""One block of rows dealt out to parts: Li, Andersen and Smola, Algorithm 3.

A part takes the row that brings it the fewest new columns; rows wait in buckets by that cost, one set of buckets for
each part. A row whose cost falls is put on top of its new bucket and left where it was: what is found in a bucket and
is dealt out already, or has another cost by now, is passed over. Columns have numbers of their own in a block, so that
what is looked at again and again stays in the processor's caches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.compiled import compiled
from gridml.placement.neighbour_sets import Words

Counts = NDArray[np.int64]
Costs = NDArray[np.int16] | NDArray[np.int32]
Block = tuple[Counts, NDArray[np.int32], NDArray[np.int32], Words, NDArray[np.int32]]
_BITS = np.arange(8, dtype=np.uint64)
# Byte j of entry b is bit j of b: eight counters of a byte each are counted up by one addition.
SPREAD: Words = ((np.arange(256, dtype=np.uint64)[:, None] >> _BITS & 1) << (8 * _BITS)).sum(axis=1, dtype=np.uint64)
_FULL = 255  # columns after which counters of a byte are emptied


@compiled
def deal(
    rows: NDArray[np.int32],
    block: Block,
    order: NDArray[np.int32],
    sets: Words,
    spread: Words,
    cost: Costs,
    parts: Parts,
) -> None:
    """Write the part of each of the `rows` of a block, int32 (n,), into `parts` (all of the graph's rows).

    The i-th that is dealt out goes to part order[i]. `sets` (columns, words) are the parts that touch each column, as
    bits, before this block; they stay as they are, so that several blocks can be dealt out at once. `cost` (parts, n)
    is scratch of a type that holds every degree.
    """
    begins, inside, column_of, record, sharing = block
    count, k, words = len(rows), len(cost), sets.shape[1]
    for here in range(len(column_of)):
        for word in range(words):
            record[here, word] = sets[column_of[here], word]
    _first_costs(begins, inside, record, spread, cost)
    depth = 1
    for i in range(count):
        depth = max(depth, begins[i + 1] - begins[i] + 1)
    # A node of a bucket is a row and the node below it; the first k·count are the rows as they begin.
    head = np.full((k, depth), -1, np.int32)
    nodes = np.empty((k * count + max(1024, len(inside)), 2), np.int32)
    lowest = np.zeros(k, np.int64)
    used = 0
    for part in range(k):
        for i in range(count - 1, -1, -1):  # equals leave in their own order
            level = cost[part, i]
            nodes[used, 0], nodes[used, 1], head[part, level] = i, head[part, level], used
            used += 1
    dealt = np.zeros(count, np.bool_)
    heard, cheaper = np.full(count, -1, np.int32), np.empty(count, np.int32)  # whose cost falls in a turn
    for turn in range(count):
        part = order[turn]
        level, i = lowest[part], -1
        while i < 0:
            node = head[part, level]
            if node < 0:
                level += 1
                continue
            head[part, level] = nodes[node, 1]
            if not dealt[nodes[node, 0]] and cost[part, nodes[node, 0]] == level:
                i = nodes[node, 0]
        lowest[part] = level
        dealt[i] = True
        parts[rows[i]] = part
        word, bit, fallen = part >> 6, np.uint64(1) << np.uint64(part & 63), 0
        for edge in range(begins[i], begins[i + 1]):
            here = inside[edge]
            if record[here, word] & bit:
                continue
            record[here, word] |= bit
            first, after = np.int64(record[here, words]), np.int64(record[here, words + 1])
            for other in range(first, after):
                j = sharing[other]
                cost[part, j] -= 1
                if heard[j] != turn:
                    heard[j] = turn
                    cheaper[fallen] = j
                    fallen += 1
        if used + fallen > len(nodes):
            longer = np.empty((2 * len(nodes) + fallen, 2), np.int32)
            longer[:used] = nodes[:used]
            nodes = longer
        for at in range(fallen):
            j = cheaper[at]
            if not dealt[j]:
                level = cost[part, j]
                nodes[used, 0], nodes[used, 1], head[part, level] = j, head[part, level], used
                used += 1
                lowest[part] = min(lowest[part], level)


@compiled
def numbered(
    offsets: Counts,
    neighbours: NDArray[np.int32],
    rows: NDArray[np.int32],
    local: NDArray[np.int32],
    words: int,
) -> Block:
    """Return a block of these rows, whose columns have numbers of their own, in the order in which they are met.

    It is where each row begins in the columns `inside` the rows; which column has each number; a record of each, uint64
    (columns of the block, words + 2): room for the parts that touch it, and where the rows that do stand in the last
    array. A column of one row has none there: nobody else's cost hangs on it. `local` (columns,) is scratch: all −1,
    before and after.
    """
    begins = np.empty(len(rows) + 1, np.int64)
    begins[0] = 0
    for i in range(len(rows)):
        begins[i + 1] = begins[i] + offsets[rows[i] + 1] - offsets[rows[i]]
    inside = np.empty(begins[-1], np.int32)
    column_of = np.empty(begins[-1], np.int32)
    times = np.empty(begins[-1], np.int32)
    found, at = 0, 0
    for row in rows:
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            here = local[column]
            if here < 0:
                here = found
                local[column] = here
                column_of[here] = column
                times[here] = 0
                found += 1
            times[here] += 1
            inside[at] = here
            at += 1
    record = np.empty((found, words + 2), np.uint64)
    at = 0
    for here in range(found):
        local[column_of[here]] = -1
        record[here, words] = record[here, words + 1] = np.uint64(at)
        if times[here] > 1:
            at += times[here]
    sharing = np.empty(at, np.int32)
    for i in range(len(rows)):
        for edge in range(begins[i], begins[i + 1]):
            here = inside[edge]
            if times[here] > 1:
                sharing[record[here, words + 1]] = i
                record[here, words + 1] += np.uint64(1)
    return begins, inside, column_of[:found].copy(), record, sharing


@compiled
def _first_costs(begins: Counts, inside: NDArray[np.int32], record: Words, spread: Words, cost: Costs) -> None:
    """Write what each row would cost each part: the columns that the part does not touch yet."""
    k = len(cost)
    groups = (k + 7) // 8
    counters = np.zeros(groups, np.uint64)
    for i in range(len(begins) - 1):
        first, after = begins[i], begins[i + 1]
        for part in range(k):
            cost[part, i] = after - first
        while first < after:
            until = min(after, first + _FULL)
            counters[:] = np.uint64(0)
            for edge in range(first, until):
                here = inside[edge]
                for group in range(groups):
                    bits = (record[here, group >> 3] >> np.uint64(8 * (group & 7))) & np.uint64(255)
                    counters[group] += spread[bits]
            for part in range(k):
                cost[part, i] -= np.int64((counters[part >> 3] >> np.uint64(8 * (part & 7))) & np.uint64(255))
            first = until
