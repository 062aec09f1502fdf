"""Which part serves a column, once the rows are placed: Li, Andersen and Smola, Algorithm 2, swept until nothing moves.

A column that only one part touches travels nowhere if that serves it. One that d ≥ 2 parts touch costs the part that
serves it d − 1, and each of the others 1, so the total is the same whichever of them it is, and what is left to choose
is who has the least to carry: each sweep gives every such column to the part, of those that touch it, that has the
least traffic without it. Two or three sweeps are enough in practice. Columns count as much as they weigh, the heaviest
come first, and where parts are not equally quick, the part is taken that would be ready first (`Pace`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import PartRates, Parts
from gridml.placement.bipartite import Bipartite, Weights
from gridml.placement.compiled import compiled
from gridml.placement.neighbours import Words, sets_of

SWEEPS = 20  # at most
LISTED = 3 << 20  # columns, at most, whose parts are listed once for all sweeps
PIECE = 1 << 19  # of more columns so many are listed at once, at each sweep


def serve(graph: Bipartite, rows: Parts, parts: int, seed: int, pace: PartRates | None = None) -> Parts:
    """Return the part that serves each column, int32 (columns,), given the part of each row. Columns that nobody
    touches are dealt out in turn."""
    return served(sets_of(graph, rows, parts), parts, seed, graph.column_weights, pace)[0]


def served(
    sets: Words, parts: int, seed: int, weights: Weights | None = None, pace: PartRates | None = None
) -> tuple[Parts, NDArray[np.int64]]:
    """As `serve`, given which parts touch each column (`sets_of`) and how much each weighs, int64 (columns,); return
    also what travels to and from each part then, int64 (parts,)."""
    home, shared = _alone(sets)  # nothing of those that are alone travels
    np.random.default_rng(seed).shuffle(shared)
    if weights is not None:
        shared = shared[np.argsort(-weights[shared], kind="stable")]
    pieces = np.array_split(shared, 1 if len(shared) <= LISTED else -(-len(shared) // PIECE))
    # Parts are listed in the order of visits, so that memory is read on and on.
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
    """Deal out to the parts in turn, in place, the columns that have no home (−1)."""
    unused = np.flatnonzero(home < 0)
    home[unused] = np.arange(len(unused)) % parts


@compiled
def _alone(sets: Words) -> tuple[Parts, Parts]:
    """Return the part of each column that only one touches, −1 for all others; and the columns that several touch."""
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
    """Return which parts touch each column, as offsets int64 (columns + 1,) into parts int32, ascending for each."""
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
    """Give each column, in order, to the part that has the least traffic without it, of those that touch it (see
    `touching`); return how many moved.

    `home` int32 (columns,) is the part that serves each, −1 for none yet, `load` int64 (parts,) the traffic of each;
    both change in place. Where two parts touch a column both carry it whichever serves it: with `pairs_stay` it does
    not leave its home.
    """
    moved = 0
    for column in range(len(home)):
        first, last = offsets[column], offsets[column + 1]
        once = 1 if weights is None else weights[column]
        extra = (last - first - 2) * once  # on top of what each part carries for a column it touches
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
            best = before
        load[best] += extra
        home[column] = best
        moved += best != before
    return moved


@compiled
def _part_cost(part: int, extra: int, load: NDArray[np.int64], pace: PartRates | None) -> float:
    """What a part has to bear with `extra` more."""
    if pace is None:
        return float(load[part])
    return float(pace.cost[part] * (load[part] + extra) + pace.fixed[part])
