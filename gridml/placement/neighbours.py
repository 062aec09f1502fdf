"""The parts that touch each column: as sets of bits, and as counts of rows.

N(U_i) of all parts at once is kept in one word a column for up to 64 parts. The counts are a table of columns ×
parts, kept up to date while rows move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Counts, Parts
from gridml.placement.bipartite import Bipartite, Ids
from gridml.placement.compiled import compiled

Words = NDArray[np.uint64]
WORD = 64  # parts of a word


def no_sets(columns: int, parts: int) -> Words:
    """Return the sets where no part touches anything, uint64 (columns, words)."""
    return np.zeros((columns, -(-parts // WORD)), np.uint64)


def sets_of(graph: Bipartite, rows: Parts, parts: int) -> Words:
    """Return the parts that touch each column, given the part of each row: part i is bit i % 64 of word i // 64."""
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


class WeighedRows(NamedTuple):
    """A graph as loops take it: row i, `works[i]` of work, touches `neighbours[offsets[i]:offsets[i + 1]]`, of `sizes`
    each. int64 (rows + 1,), int32 (edges,), int64 (rows,) and (columns,)."""

    offsets: Counts
    neighbours: Ids
    works: Counts
    sizes: Counts


class DenseCounts(NamedTuple):
    """The part of each row, int32 (rows,), −1 for none, and what follows of it. `times` int32 (columns, parts): the
    rows of a part that touch a column; `touched` int64 (parts,): |N(U_i)|, in sizes of columns; `load` int64 (parts,):
    the work of a part's rows. All of it changes in place."""

    rows: Parts
    times: NDArray[np.int32]
    touched: Counts
    load: Counts


def dense_counts(graph: Bipartite, works: Counts, rows: Parts, parts: int) -> tuple[WeighedRows, DenseCounts]:
    """Count what the rows of each part touch, given the part of each, −1 for none, and its work, int64 (rows,). The
    given `rows` are those of the counts, and change with them."""
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
    """Put a row of no part into this one."""
    for edge in range(graph.offsets[row], graph.offsets[row + 1]):
        column = graph.neighbours[edge]
        counts.touched[part] += graph.sizes[column] * (counts.times[column, part] == 0)
        counts.times[column, part] += 1
    counts.load[part] += graph.works[row]
    counts.rows[row] = part


@compiled
def leave(row: int, graph: WeighedRows, counts: DenseCounts) -> None:
    """Take a row out of its part."""
    part = counts.rows[row]
    for edge in range(graph.offsets[row], graph.offsets[row + 1]):
        column = graph.neighbours[edge]
        counts.times[column, part] -= 1
        counts.touched[part] -= graph.sizes[column] * (counts.times[column, part] == 0)
    counts.load[part] -= graph.works[row]
    counts.rows[row] = -1
