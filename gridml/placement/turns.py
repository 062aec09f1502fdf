"""Whose turn it is to take a row: of parts with unequal shares, or of rows with unequal work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Options, Parts, Shares
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled


class Fill(NamedTuple):
    """How far parts are with what they are to have: the `load` of each, float64 (parts,), which changes in place, their
    `shares`, float64 (parts,), and the work of each row of the graph, int64 (rows,)."""

    load: Shares
    shares: Shares
    weights: NDArray[np.int64]


def fill_of(graph: Bipartite, parts: int, options: Options) -> Fill | None:
    """Return empty parts where shares or work are unequal, or None: parts take one row each in turn."""
    shares = options.fractions
    if shares is None and graph.row_weights is None:
        return None
    return Fill(np.zeros(parts), np.full(parts, 1 / parts) if shares is None else shares, graph.works)


@compiled
def next_part(load: Shares, shares: Shares) -> int:
    """Return the part with the least load for its share, the first of several. So none ever has more than its share of
    what is dealt out, and one row more."""
    best = 0
    for part in range(1, len(load)):
        if load[part] * shares[best] < load[best] * shares[part]:
            best = part
    return best


@compiled
def in_turn(order: NDArray[np.int32], fill: Fill, parts: Parts) -> None:
    """Deal out the rows in this order, each to the part whose turn it is, into `parts`, int32 (rows,)."""
    for row in order:
        part = next_part(fill.load, fill.shares)
        parts[row] = part
        fill.load[part] += fill.weights[row]
