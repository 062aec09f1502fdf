"""The parts that touch each column, as bit sets and as counts of rows, and the part that serves it.

A column that only one part touches causes no traffic if that part serves it. A column that d ≥ 2 parts touch costs the
serving part d − 1, and each of the other parts 1. So the choice changes only the balance, not the total. A sweep visits
each column and compares the parts that touch it: the part with the least traffic, not counting this column, serves it.
Sweeps end when no column moves; two or three are enough in practice. Columns count by weight, and the heaviest come
first. If parts differ in speed (`PartRates`), the part that would finish first serves the column.

The bit sets take one word per column for up to 64 parts. The counts are a table of columns × parts that is updated as
rows move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import Counts, PartRates, Parts
from gridml.placement.bipartite import Bipartite, Ids, Weights

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


SWEEPS = 20  # maximum number of sweeps
LISTED = 3 << 20  # for up to this many columns, the lists of touching parts are built once for all sweeps
PIECE = 1 << 19  # with more columns, every sweep builds the lists again, this many at a time, to bound memory


def serve(graph: Bipartite, rows: Parts, parts: int, seed: int, pace: PartRates | None = None) -> Parts:
    """Return the part that serves each column, int32 (columns,), given the part of each row. Columns that no row
    touches are dealt out in turn."""
    return served(sets_of(graph, rows, parts), parts, seed, graph.column_weights, pace)[0]


def served(
    sets: Words, parts: int, seed: int, weights: Weights | None = None, pace: PartRates | None = None
) -> tuple[Parts, NDArray[np.int64]]:
    """Like `serve`, given `sets`, the parts that touch each column (`sets_of`), and the weights of columns, int64
    (columns,). Return also the traffic of each part, int64 (parts,)."""
    home, shared = _alone(sets)  # columns of a single part cause no traffic
    np.random.default_rng(seed).shuffle(shared)
    if weights is not None:
        shared = shared[np.argsort(-weights[shared], kind="stable")]
    pieces = np.array_split(shared, 1 if len(shared) <= LISTED else -(-len(shared) // PIECE))
    # The lists are in the order of visits, so that memory is read sequentially.
    whole = touching(sets[shared], parts) if len(pieces) == 1 else None
    load = np.zeros(parts, np.int64)
    for _ in range(SWEEPS):
        moved = 0
        for piece in pieces:
            offsets, touch = touching(sets[piece], parts) if whole is None else whole
            chosen = home[piece]
            moved += sweep(offsets, touch, None if weights is None else weights[piece], pace, False, chosen, load)
            home[piece] = chosen
        if not moved:
            break
    deal_unused(home, parts)
    return home, load


def deal_unused(home: Parts, parts: int) -> None:
    """Deal out columns without a home (−1) to the parts in turn, in place."""
    unused = np.flatnonzero(home < 0)
    home[unused] = np.arange(len(unused)) % parts


@compiled
def _alone(sets: Words) -> tuple[Parts, Parts]:
    """Return, for each column, the only part that touches it, or −1 if none or several do; and the columns that several
    parts touch."""
    home, shared = np.full(len(sets), -1, np.int32), np.empty(len(sets), np.int32)
    count = 0
    for column in range(len(sets)):
        part, several = -1, False
        for word in range(sets.shape[1]):
            bits = sets[column, word]
            if bits:
                several = several or part >= 0 or bits & (bits - np.uint64(1)) != 0
                part = word << 6
                while not bits & np.uint64(1):
                    bits >>= np.uint64(1)
                    part += 1
        if several:
            shared[count] = column
            count += 1
        else:
            home[column] = part
    return home, shared[:count]


@compiled
def touching(sets: Words, parts: int) -> tuple[NDArray[np.int64], Parts]:
    """Return the parts that touch each column as lists: the offsets of columns, int64 (columns + 1,), and the parts,
    int32, ascending in each list."""
    offsets = np.empty(len(sets) + 1, np.int64)
    offsets[0] = 0
    for column in range(len(sets)):
        count = 0
        for word in range(sets.shape[1]):
            left = sets[column, word]
            while left:
                left &= left - np.uint64(1)
                count += 1
        offsets[column + 1] = offsets[column] + count
    found, at = np.empty(offsets[-1], np.int32), 0
    for column in range(len(sets)):
        for word in range(sets.shape[1]):
            left, part = sets[column, word], word << 6
            while left:
                if left & np.uint64(1):
                    found[at] = part
                    at += 1
                left >>= np.uint64(1)
                part += 1
    return offsets, found


@compiled
def sweep(
    offsets: NDArray[np.int64],
    touch: Parts,
    weights: Weights | None,
    pace: PartRates | None,
    pairs_stay: bool,
    home: Parts,
    load: NDArray[np.int64],
) -> int:
    """Visit each column in order. Of the parts that touch it (see `touching`), give it to the one with the least
    traffic, not counting this column. Return the number of moves.

    `home` int32 (columns,) is the part that serves each column, −1 for none yet, and `load` int64 (parts,) the traffic
    of each part; both change in place. With `pairs_stay`, columns of two parts keep their home, since their traffic is
    the same either way.
    """
    moved = 0
    for column in range(len(home)):
        first, last = offsets[column], offsets[column + 1]
        once = 1 if weights is None else weights[column]
        extra = (last - first - 2) * once  # traffic of the serving part beyond that of the other parts that touch it
        before = home[column]
        if pairs_stay and before >= 0 and last - first == 2:
            continue
        if before < 0:
            for at in range(first, last):
                load[touch[at]] += once
        else:
            load[before] -= extra
        best = touch[first]
        for at in range(first + 1, last):
            if _part_cost(touch[at], extra, load, pace) < _part_cost(best, extra, load, pace):
                best = touch[at]
        if before >= 0 and _part_cost(before, extra, load, pace) == _part_cost(best, extra, load, pace):
            best = before  # a tie does not move a column
        load[best] += extra
        home[column] = best
        moved += best != before
    return moved


@compiled
def _part_cost(part: int, extra: int, load: NDArray[np.int64], pace: PartRates | None) -> float:
    """The cost of a part with `extra` traffic."""
    if pace is None:
        return float(load[part])
    return float(pace.cost[part] * (load[part] + extra) + pace.fixed[part])
