"""Greedy: rows come in a random order, and each goes to the part that touches most of its columns already.

PowerGraph's placement of edges (Gonzalez, Low, Gu, Bickson and Guestrin, OSDI 2012, section 5.2), applied to rows: it
sees each row once and never comes back to it, so it is the baseline for what looks further. Of parts that touch as many
of the columns, the one with the fewest rows is taken. Parts grow together: a part that is ahead would touch the most of
anything, and take all that comes until it is full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Options, Parts, Placement, check, room
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled
from gridml.placement.neighbour_sets import Words, no_sets
from gridml.placement.serving import serve_sets

AHEAD = 0.01  # of an even share: how many rows more than the smallest part one may have on the way


class Greedy:
    """Two passes over the edges at most, and a bit for each column and part."""

    name = "greedy"

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts)
        order = np.random.default_rng(options.seed).permutation(graph.rows).astype(np.int32)
        sets = no_sets(graph.columns, parts)
        most, extra = room(graph.rows, parts, options.slack)
        ahead = max(1, int((AHEAD + options.slack) * graph.rows / parts))
        rows = np.full(graph.rows, -1, np.int32)
        _deal(graph.offsets, graph.neighbours, order, parts, most, extra, ahead, sets, rows)
        return Placement(parts, rows, serve_sets(sets, parts, options.seed), "greedy, in a random order")


@compiled
def _deal(
    offsets: NDArray[np.int64],
    neighbours: NDArray[np.int32],
    order: NDArray[np.int32],
    parts: int,
    most: int,
    extra: int,
    ahead: int,
    sets: Words,
    rows: Parts,
) -> None:
    size = np.zeros(parts, np.int64)
    known = np.empty(parts, np.int64)
    for row in order:
        known[:] = 0
        for edge in range(offsets[row], offsets[row + 1]):
            for word in range(sets.shape[1]):
                bits = sets[neighbours[edge], word]
                part = word << 6
                while bits:
                    if bits & np.uint64(1):
                        known[part] += 1
                    bits >>= np.uint64(1)
                    part += 1
        smallest = size.min()
        best = -1
        for part in range(parts):
            full = size[part] > most or (size[part] == most and not extra)
            if full or size[part] >= smallest + ahead:
                continue
            if best < 0 or known[part] > known[best] or (known[part] == known[best] and size[part] < size[best]):
                best = part
        extra -= size[best] == most
        size[best] += 1
        rows[row] = best
        word, bit = best >> 6, np.uint64(1) << np.uint64(best & 63)
        for edge in range(offsets[row], offsets[row + 1]):
            sets[neighbours[edge], word] |= bit
