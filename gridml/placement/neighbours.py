"""The parts that touch each column, as bit sets and as counts of rows.

The bit sets take one word per column for up to 64 parts. The counts are a table of columns × parts that is updated as
rows move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import Counts, Parts
from gridml.placement.bipartite import Bipartite, Ids

Words = NDArray[np.uint64]
WORD = 64  # parts per word


def no_sets(columns: int, parts: int) -> Words:
    """Return empty bit sets, uint64 (columns, words)."""
    return np.zeros((columns, -(-parts // WORD)), np.uint64)


def sets_of(graph: Bipartite, rows: Parts, parts: int) -> Words:
    """Return the parts that touch each column, uint64 (columns, words): part i is bit i % 64 of word i // 64."""
    sets = no_sets(graph.columns, parts)
    for first, piece in graph.pieces():
        _add(piece.offsets, piece.neighbours, rows[first : first + piece.rows], sets)
    return sets


@compiled
def _add(offsets: NDArray[np.int64], neighbours: NDArray[np.int32], parts: Parts, sets: Words) -> None:
    for row in range(len(parts)):
        word, bit = parts[row] >> 6, np.uint64(1) << np.uint64(parts[row] & 63)
        for edge in range(offsets[row], offsets[row + 1]):
            sets[neighbours[edge], word] |= bit


@compiled
def touched_by(sets: Words, parts: int) -> Counts:
    """Return the number of columns that each part touches, int64 (parts,)."""
    touched = np.zeros(parts, np.int64)
    for column in range(len(sets)):
        for word in range(sets.shape[1]):
            bits, part = sets[column, word], word << 6
            while bits:
                touched[part] += np.int64(bits & np.uint64(1))
                bits >>= np.uint64(1)
                part += 1
    return touched


class WeighedRows(NamedTuple):
    """A weighted graph in the form that kernels take."""

    offsets: Counts  #: int64 (rows + 1,)
    neighbours: Ids  #: int32 (edges,): row i touches neighbours[offsets[i]:offsets[i + 1]]
    works: Counts  #: the work of each row, int64 (rows,)
    sizes: Counts  #: the bytes of each column, int64 (columns,)


class DenseCounts(NamedTuple):
    """The part of each row, and counts derived from it. All arrays change in place, only by `enter` and `leave`."""

    rows: Parts  #: the part of each row, −1 for none, int32 (rows,)
    times: NDArray[np.int32]  #: the number of rows of a part that touch a column, int32 (columns, parts)
    touched: Counts  #: |N(U_i)|, the bytes of the columns that each part touches, int64 (parts,)
    load: Counts  #: the work of each part's rows, int64 (parts,)


def dense_counts(graph: Bipartite, works: Counts, rows: Parts, parts: int) -> tuple[WeighedRows, DenseCounts]:
    """Count what the rows of each part touch. `works` int64 (rows,) is the work of each row. `rows` is the part of each
    row, −1 for none; it is not copied, so it changes when rows move."""
    weighed = WeighedRows(graph.offsets, graph.neighbours, works, graph.sizes)
    times, touched = np.zeros((graph.columns, parts), np.int32), np.zeros(parts, np.int64)
    counts = DenseCounts(rows, times, touched, np.zeros(parts, np.int64))
    _count(weighed, counts)
    return weighed, counts


@compiled
def _count(graph: WeighedRows, counts: DenseCounts) -> None:
    for row in range(len(counts.rows)):
        if counts.rows[row] >= 0:
            enter(row, counts.rows[row], graph, counts)


@compiled
def enter(row: int, part: int, graph: WeighedRows, counts: DenseCounts) -> None:
    """Add a row without a part to this part."""
    for edge in range(graph.offsets[row], graph.offsets[row + 1]):
        column = graph.neighbours[edge]
        counts.touched[part] += graph.sizes[column] * (counts.times[column, part] == 0)
        counts.times[column, part] += 1
    counts.load[part] += graph.works[row]
    counts.rows[row] = part


@compiled
def leave(row: int, graph: WeighedRows, counts: DenseCounts) -> None:
    """Remove a row from its part."""
    part = counts.rows[row]
    for edge in range(graph.offsets[row], graph.offsets[row + 1]):
        column = graph.neighbours[edge]
        counts.times[column, part] -= 1
        counts.touched[part] -= graph.sizes[column] * (counts.times[column, part] == 0)
    counts.load[part] -= graph.works[row]
    counts.rows[row] = -1
