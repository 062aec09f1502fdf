"""What parts have in common: which of them are near one another, and an order in which neighbours are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite
from gridml.placement.neighbour_sets import sets_of
from gridml.placement.serving import touching

Shared = NDArray[np.int64]


def overlap(graph: Bipartite, rows: Parts, parts: int, weights: NDArray[np.int64]) -> Shared:
    """Return what each two parts both touch, int64 (parts, parts), given the part of each row and the weight of each
    column: on the diagonal is all that a part touches."""
    offsets, touch = touching(sets_of(graph, rows, parts), parts)
    touched = csr_array((np.ones(len(touch), np.int64), touch, offsets), shape=(graph.columns, parts))
    weighed = csr_array((np.repeat(weights, np.diff(offsets)), touch, offsets), shape=(graph.columns, parts))
    shared: Shared = (touched.T @ weighed).toarray()
    return shared


def chain(shared: Shared) -> NDArray[np.int64]:
    """Return the parts in an order in which each is followed by the one, of those that are left, that shares most with
    it. The first is the one that shares most with all others."""
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
