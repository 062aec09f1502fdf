"""Serving: chooses the part that serves each column (Li, Andersen and Smola, Algorithm 2), in repeated sweeps.

A column that only one part touches causes no traffic if that part serves it. A column that d ≥ 2 parts touch costs the
serving part d − 1, and each of the other parts 1. So the choice changes only the balance, not the total. A sweep visits
each column and compares the parts that touch it: the part with the least traffic, not counting this column, serves it.
Sweeps end when no column moves; two or three are enough in practice. Columns count by weight, and the heaviest come
first. If parts differ in speed (`PartRates`), the part that would finish first serves the column.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import PartRates, Parts
from gridml.placement.bipartite import Bipartite, Weights
from gridml.placement.neighbours import Words, sets_of

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
