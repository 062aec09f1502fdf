"""Sections of parts, and the overlap between parts.

A section holds rows of one part that touch mostly the same columns, so any piece of it needs few columns. The sections
of a part are found by Parsa, which places the part's rows by themselves. A column that several parts touch is then
needed in some sections of a part, not in all. The overlap of two parts is the weight of the columns that both touch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite, Ids
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.serving import sets_of, touching


def sections(graph: Bipartite, rows: Parts, parts: int, each: int, seed: int) -> Parts:
    """Return the section of each row within its part, int32 (rows,) from 0 to `each` - 1.

    The numbers of rows in the sections of a part differ by at most one. A part with fewer than `each` rows is not
    divided.
    """
    section_of = np.zeros(graph.rows, np.int32)
    if each == 1:
        return section_of
    ends = np.cumsum(np.bincount(rows, minlength=parts))
    numbers = np.empty(graph.columns, np.int32)
    for members in np.split(np.argsort(rows, kind="stable").astype(np.int32), ends[:-1]):
        if len(members) >= each:
            section_of[members] = deal_out(_compact(graph.only(members), numbers), each, ParsaOptions(seed))[0]
    return section_of


def _compact(graph: Bipartite, numbers: Ids) -> Bipartite:
    """Return the graph with only the columns that its rows touch, renumbered. `numbers` (columns,) is scratch, which
    need not be cleared."""
    # Each edge writes its index into the entry of its column, and the index that stays there identifies the column.
    # This finds the distinct columns without sorting.
    touched = graph.neighbours
    numbers[touched] = np.arange(len(touched), dtype=np.int32)  # of the edges to one column, the last one stays
    chosen = touched[numbers[touched] == np.arange(len(touched))]
    numbers[chosen] = np.arange(len(chosen), dtype=np.int32)
    return Bipartite(graph.offsets, numbers[touched], len(chosen))


Shared = NDArray[np.int64]


def overlap(graph: Bipartite, rows: Parts, parts: int, weights: NDArray[np.int64]) -> Shared:
    """Return, for each two parts, the weight of the columns that both touch, int64 (parts, parts). The diagonal is the
    weight of what each part touches."""
    offsets, touch = touching(sets_of(graph, rows, parts), parts)
    touched = csr_array((np.ones(len(touch), np.int64), touch, offsets), shape=(graph.columns, parts))
    weighed = csr_array((np.repeat(weights, np.diff(offsets)), touch, offsets), shape=(graph.columns, parts))
    shared: Shared = (touched.T @ weighed).toarray()
    return shared


def chain(shared: Shared) -> NDArray[np.int64]:
    """Order the parts greedily: each is followed by the remaining part that shares most with it. The first is the part
    that shares most with all others."""
    parts = len(shared)
    near = shared.copy()
    np.fill_diagonal(near, 0)
    order = np.empty(parts, np.int64)
    order[0] = np.argmax(near.sum(axis=0))
    left = np.ones(parts, bool)
    for at in range(1, parts):
        left[order[at - 1]] = False
        order[at] = np.argmax(np.where(left, near[order[at - 1]], -1))
    return order
