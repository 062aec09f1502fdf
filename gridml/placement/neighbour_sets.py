"""Which parts touch each column, as bits: N(U_i) for all parts at once, in one word a column for up to 64 of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite
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
