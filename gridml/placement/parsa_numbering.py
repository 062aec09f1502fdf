"""Renumbering of a block's columns, so that hot data stays in the processor's caches.

Columns that several rows of the block share come first. Only they can change the cost of other rows when a row is
assigned. The other columns, called *alone* because a single row of the block touches them, follow row by row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.bipartite import Ids, Offsets
from gridml.placement.serving import Words

DIGIT = 12  # maximum bits per round of the radix sort: a round writes to up to 2^DIGIT different places


class Block(NamedTuple):
    """n rows with m columns, s of which are shared by rows of the block."""

    begins: Offsets  #: offsets of rows into `inside`, int64 (n + 1,)
    inside: Ids  #: the shared columns of each row, in the block's numbers, int32
    alone: Offsets  #: only row i touches the columns numbered alone[i] to alone[i + 1] − 1, int64 (n + 1,)
    columns: Ids  #: the block's columns, in the graph's numbers, ascending, int32 (m,)
    numbers: Ids  #: the same columns, in the block's numbers, int32 (m,)
    first: Ids  #: offsets of shared columns into `sharing`, int32 (s + 1,)
    sharing: Ids  #: the rows that share column h are sharing[first[h]:first[h + 1]], int32


@compiled
def numbered(offsets: Offsets, neighbours: Ids, rows: Ids, columns: int, scratch: Words) -> Block:
    """Return a block of these rows, in this order.

    `columns` is the number of columns of the graph. `scratch` is uint64 (2, n), where n is at least the number of edges
    of the rows.
    """
    # Edges are radix-sorted by column. The alternative, a lookup table of all columns, needs a random read per edge.
    n, edges = len(rows), 0
    for row in rows:
        edges += offsets[row + 1] - offsets[row]
    bits = 1
    while columns - 1 >> bits > 0:  # also ends if there are no columns: −1 never shifts to a positive number
        bits += 1
    digits = (bits + DIGIT - 1) // DIGIT
    width = (bits + digits - 1) // digits
    mask = np.uint64((1 << width) - 1)
    places = np.zeros((digits, 1 << width), np.int64)
    keys, sorted_keys = scratch[0], scratch[1]  # the column in the upper half, the row within the block in the lower
    at = 0
    for i in range(n):
        for edge in range(offsets[rows[i]], offsets[rows[i] + 1]):
            column = np.uint64(neighbours[edge])
            keys[at] = column << np.uint64(32) | np.uint64(i)
            at += 1
            for digit in range(digits):
                places[digit, np.int64(column >> np.uint64(digit * width) & mask)] += 1
    for digit in range(digits):
        place, begin = places[digit], 0
        for value in range(1 << width):
            many = int(place[value])
            place[value] = begin
            begin += many
        shift = np.uint64(32 + digit * width)
        for edge in range(edges):
            stack = np.int64(keys[edge] >> shift & mask)
            sorted_keys[place[stack]] = keys[edge]
            place[stack] += 1
        keys, sorted_keys = sorted_keys, keys
    return _grouped(keys[:edges], n)


@compiled
def _grouped(keys: NDArray[np.uint64], n: int) -> Block:
    """Build the block of n rows from its edges, which are sorted by column."""
    low, edges = np.uint64(0xFFFFFFFF), len(keys)
    begins, alone = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    shared = at = 0
    while at < edges:
        after = _group_end(keys, at)
        if after - at == 1:
            alone[np.int64(keys[at] & low) + 1] += 1
        else:
            shared += 1
            for edge in range(at, after):
                begins[np.int64(keys[edge] & low) + 1] += 1
        at = after
    alone[0] = shared
    for i in range(n):
        begins[i + 1] += begins[i]
        alone[i + 1] += alone[i]
    next_inside, next_alone = begins[:n].copy(), alone[:n].copy()
    inside, sharing = np.empty(begins[n], np.int32), np.empty(begins[n], np.int32)
    columns, numbers = np.empty(alone[n], np.int32), np.empty(alone[n], np.int32)
    first = np.empty(shared + 1, np.int32)
    found = here = to = at = 0
    while at < edges:
        after = _group_end(keys, at)
        columns[found] = keys[at] >> np.uint64(32)
        if after - at == 1:
            row = np.int64(keys[at] & low)
            numbers[found] = next_alone[row]
            next_alone[row] += 1
        else:
            numbers[found], first[here] = here, to
            for edge in range(at, after):
                row = np.int64(keys[edge] & low)
                sharing[to] = row
                to += 1
                inside[next_inside[row]] = here
                next_inside[row] += 1
            here += 1
        found += 1
        at = after
    first[shared] = to
    return Block(begins, inside, alone, columns, numbers, first, sharing)


@compiled
def _group_end(keys: NDArray[np.uint64], at: int) -> int:
    column = keys[at] >> np.uint64(32)
    at += 1
    while at < len(keys) and keys[at] >> np.uint64(32) == column:
        at += 1
    return at


@compiled
def gather(block: Block, sets: Words) -> Words:
    """Return the parts that touch each of the block's columns, uint64 (m, words), in the block's numbering."""
    touched = np.empty((len(block.columns), sets.shape[1]), np.uint64)
    for at in range(len(block.columns)):
        for word in range(sets.shape[1]):
            touched[block.numbers[at], word] = sets[block.columns[at], word]
    return touched


@compiled
def keep(block: Block, touched: Words, sets: Words) -> None:
    """Add the parts that touch the block's columns to the graph's `sets`."""
    for at in range(len(block.columns)):
        for word in range(sets.shape[1]):
            sets[block.columns[at], word] |= touched[block.numbers[at], word]


@compiled
def forget(block: Block, rows: Ids, parts: Ids, touched: Words) -> None:
    """Reset `touched` to what the block's own rows touch. `parts` is the part of each row of the graph."""
    touched[:] = np.uint64(0)
    for i in range(len(rows)):
        word, bit = parts[rows[i]] >> 6, np.uint64(1) << np.uint64(parts[rows[i]] & 63)
        for edge in range(block.begins[i], block.begins[i + 1]):
            touched[block.inside[edge], word] |= bit
        for here in range(block.alone[i], block.alone[i + 1]):
            touched[here, word] |= bit
