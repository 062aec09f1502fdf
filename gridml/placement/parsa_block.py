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

Words = NDArray[np.uint64]
Counts = NDArray[np.int64]
WORD = 64  # parts of a word of a neighbour set
_BITS = np.arange(8, dtype=np.uint64)
# Byte j of entry b is bit j of b: eight counters of a byte each are counted up by one addition.
SPREAD: Words = ((np.arange(256, dtype=np.uint64)[:, None] >> _BITS & 1) << (8 * _BITS)).sum(axis=1, dtype=np.uint64)
_FULL = 255  # columns after which counters of a byte are emptied


@compiled
def deal(
    offsets: Counts,
    neighbours: NDArray[np.int32],
    rows: NDArray[np.int32],
    sets: Words,
    local: NDArray[np.int32],
    spread: Words,
    order: NDArray[np.int32],
    parts: Parts,
    touched: Counts,
) -> None:
    """Write the part of each of the `rows`, int32 (n,), into `parts` (all of the graph's rows).

    The i-th of them goes to part order[i]. `sets` (columns, words) are the parts that touch each column, as bits, and
    `touched` (parts,) how many columns each part touches; both are brought up to date. `local` (columns,) is scratch:
    all −1, before and after.
    """
    count, k, words = len(rows), len(touched), sets.shape[1]
    # Columns in the order in which they are met, and how many rows of the block touch each.
    edges = 0
    for row in rows:
        edges += offsets[row + 1] - offsets[row]
    column_of = np.empty(edges, np.int32)
    begins = np.empty(count + 1, np.int64)
    inside = np.empty(edges, np.int32)
    times = np.zeros(edges, np.int32)
    found, at, deepest = 0, 0, 0
    for i in range(count):
        begins[i] = at
        row = rows[i]
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            here = local[column]
            if here < 0:
                here = found
                local[column] = here
                column_of[here] = column
                found += 1
            times[here] += 1
            inside[at] = here
            at += 1
        deepest = max(deepest, at - begins[i])
    begins[count] = at
    mask = np.empty((found, words), np.uint64)
    for here in range(found):
        column = column_of[here]
        local[column] = -1
        for word in range(words):
            mask[here, word] = sets[column, word]
    # The rows of each column that more than one row touches.
    ends = np.empty(found + 1, np.int64)
    at = 0
    for here in range(found):
        ends[here] = at
        if times[here] > 1:
            at += times[here]
    ends[found] = at
    sharing = np.empty(at, np.int32)
    for i in range(count):
        for edge in range(begins[i], begins[i + 1]):
            here = inside[edge]
            if times[here] > 1:
                sharing[ends[here]] = i
                ends[here] += 1
    for here in range(found - 1, -1, -1):  # each has moved to its end
        ends[here + 1] = ends[here]
    ends[0] = 0
    # What each row would cost each part: the columns that the part does not touch yet.
    cost = np.empty((k, count), np.int32)
    groups = (k + 7) // 8
    counters = np.zeros(groups, np.uint64)
    for i in range(count):
        degree = begins[i + 1] - begins[i]
        for part in range(k):
            cost[part, i] = degree
        since = 0
        for edge in range(begins[i], begins[i + 1]):
            here = inside[edge]
            for group in range(groups):
                bits = (mask[here, group >> 3] >> np.uint64(8 * (group & 7))) & np.uint64(255)
                counters[group] += spread[bits]
            since += 1
            if since == _FULL or edge + 1 == begins[i + 1]:
                since = 0
                for part in range(k):
                    cost[part, i] -= np.int32((counters[part >> 3] >> np.uint64(8 * (part & 7))) & np.uint64(255))
                counters[:] = np.uint64(0)
    # A node of a bucket is a row; the first k·count of them are the rows as they begin.
    depth = deepest + 1
    head = np.full((k, depth), -1, np.int64)
    following = np.empty(k * count + max(1024, edges), np.int64)
    who = np.empty(len(following), np.int32)
    lowest = np.zeros(k, np.int64)
    used = 0
    for part in range(k):
        for i in range(count - 1, -1, -1):  # equals leave in their own order
            level = cost[part, i]
            who[used], following[used], head[part, level] = i, head[part, level], used
            used += 1
    dealt = np.zeros(count, np.bool_)
    for turn in range(count):
        part = order[turn]
        level, i = lowest[part], -1
        while i < 0:
            node = head[part, level]
            if node < 0:
                level += 1
                continue
            head[part, level] = following[node]
            if not dealt[who[node]] and cost[part, who[node]] == level:
                i = who[node]
        lowest[part] = level
        dealt[i] = True
        parts[rows[i]] = part
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        for edge in range(begins[i], begins[i + 1]):
            here = inside[edge]
            if mask[here, word] & bit:
                continue
            mask[here, word] |= bit
            touched[part] += 1
            if used + ends[here + 1] - ends[here] > len(following):
                more = max(2 * len(following), used + int(ends[here + 1] - ends[here]))
                longer, wider = np.empty(more, np.int64), np.empty(more, np.int32)
                longer[:used], wider[:used] = following[:used], who[:used]
                following, who = longer, wider
            for other in range(ends[here], ends[here + 1]):
                j = sharing[other]
                if dealt[j]:
                    continue
                level = cost[part, j] - 1
                cost[part, j] = level
                who[used], following[used], head[part, level] = j, head[part, level], used
                used += 1
                lowest[part] = min(lowest[part], level)
    for here in range(found):
        column = column_of[here]
        for word in range(words):
            sets[column, word] = mask[here, word]


@compiled
def keep_only(
    offsets: Counts, neighbours: NDArray[np.int32], rows: NDArray[np.int32], parts: Parts, sets: Words
) -> None:
    """Leave in the neighbour `sets` what the given rows touch, and nothing else."""
    sets[:] = np.uint64(0)
    for row in rows:
        word, bit = parts[row] >> 6, np.uint64(1) << np.uint64(parts[row] & 63)
        for edge in range(offsets[row], offsets[row + 1]):
            sets[neighbours[edge], word] |= bit
