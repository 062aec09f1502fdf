"""Greedy and random placement: the baselines that other methods are compared with.

Greedy: rows come in random order, and each goes to the part that already touches most of its columns. This is
PowerGraph's placement of edges (Gonzalez, Low, Gu, Bickson and Guestrin, OSDI 2012, section 5.2), applied to rows. It
visits each row once. Ties go to the part with the fewest rows. Columns count by weight, rows by work.

Random: rows are dealt out at random. Each part gets its share, or an equal number if there are no shares.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.base import (
    ALL_FEATURES,
    COLUMN_WEIGHTS,
    MEMORY_LIMIT,
    ROW_WEIGHTS,
    SHARES,
    TOTAL,
    Counts,
    Options,
    Parts,
    Placement,
    Shares,
    check,
    fill_of,
    in_turn,
    room,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.serving import Words, no_sets, serve, served

# A part takes a row only if it is ahead of the smallest part by less than this fraction of an even share, so that parts
# grow together. Without this bound, a part ahead of the others would touch most columns of every row, and would take
# all rows until it is full.
AHEAD = 0.01


class Greedy:
    """Greedy placement, in at most two passes over the edges and with one bit of memory per column and part."""

    name = "greedy"
    supports = frozenset({SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, f"objective {TOTAL}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        order = np.random.default_rng(options.seed).permutation(graph.rows).astype(np.int32)
        sets = no_sets(graph.columns, parts)
        works, sizes, shares = graph.row_weights, graph.column_weights, options.fractions
        most, extra = room(graph.work, parts, options.slack, shares, weighted=works is not None)
        ahead = max(graph.work // graph.rows, 1, int((AHEAD + options.slack) * graph.work / parts))
        share = np.ones(parts) if shares is None else parts * shares
        rows = np.full(graph.rows, -1, np.int32)
        _deal(graph.offsets, graph.neighbours, works, sizes, order, share, most, extra, ahead, sets, rows)
        return Placement(parts, rows, served(sets, parts, options.seed, sizes)[0], "greedy, in a random order")


@compiled
def _deal(
    offsets: NDArray[np.int64],
    neighbours: NDArray[np.int32],
    works: Counts | None,
    weights: Counts | None,
    order: NDArray[np.int32],
    share: Shares,
    most: Counts,
    extra: int,
    ahead: int,
    sets: Words,
    rows: Parts,
) -> None:
    parts = len(share)
    size = np.zeros(parts, np.int64)
    known, filled = np.empty(parts, np.int64), np.empty(parts)
    for row in order:
        known[:] = 0
        for edge in range(offsets[row], offsets[row + 1]):
            for word in range(sets.shape[1]):
                bits = sets[neighbours[edge], word]
                part = word << 6
                while bits:
                    if bits & np.uint64(1):
                        known[part] += 1 if weights is None else weights[neighbours[edge]]
                    bits >>= np.uint64(1)
                    part += 1
        # A part is a candidate if it is not full and not too far ahead of the smallest.
        smallest = np.inf
        for part in range(parts):
            full = size[part] > most[part] or (size[part] == most[part] and not extra)
            filled[part] = np.inf if full else size[part] / share[part]
            smallest = min(smallest, filled[part])
        best = -1
        for part in range(parts):
            if filled[part] == np.inf or filled[part] >= smallest + ahead:
                continue
            if best < 0 or known[part] > known[best] or (known[part] == known[best] and filled[part] < filled[best]):
                best = part
        extra -= size[best] == most[best]
        size[best] += 1 if works is None else works[row]
        rows[row] = best
        word, bit = best >> 6, np.uint64(1) << np.uint64(best & 63)
        for edge in range(offsets[row], offsets[row + 1]):
            sets[neighbours[edge], word] |= bit


class AtRandom:
    """Random placement of rows, and of columns too, as in the published baselines. With `served`, each column goes to a
    part that touches it; this alone saves up to a third of the traffic. The objective is ignored."""

    supports = ALL_FEATURES - {MEMORY_LIMIT}

    def __init__(self, *, served: bool = False) -> None:
        self.name = "random-served" if served else "random"
        self._served = served

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        rng = np.random.default_rng(options.seed)
        fill = fill_of(graph, parts, options)
        rows = _dealt(graph.rows, parts, rng)
        if fill is not None:
            in_turn(rng.permutation(graph.rows).astype(np.int32), fill, rows)
        columns = _dealt(graph.columns, parts, rng)
        if self._served:
            columns = serve(graph, rows, parts, options.seed)
        return Placement(parts, rows, columns, "by chance")


def _dealt(count: int, parts: int, rng: np.random.Generator) -> Parts:
    return (rng.permutation(count) % parts).astype(np.int32)
