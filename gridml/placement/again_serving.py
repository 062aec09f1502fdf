"""Columns that were served before: they stay where they are, or move where that evens the traffic out.

Sweeps as in `serving`, but from the parts that served the columns before, and counting what those that stay carry. A
part need not touch what it serves here. Of a column that two parts touch it is all one which of them serves it, so it
stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Counts, Parts
from gridml.placement.bipartite import Weights
from gridml.placement.compiled import compiled
from gridml.placement.neighbour_sets import Words
from gridml.placement.serving import SWEEPS, deal_unused, sweep, touching


def serve_again(
    sets: Words, parts: int, seed: int, before: Parts, weights: Weights | None = None, *, stay: bool
) -> Parts:
    """Return the part that serves each column, int32 (columns,), given which parts touch it (`neighbour_sets`), which
    served it `before`, −1 for none, and how much it weighs, int64 (columns,). All that have one `stay`, or those whose
    part touches them begin there."""
    offsets, touch = touching(sets, parts)
    times = np.diff(offsets)
    home = before.astype(np.int32)
    if not stay:
        home[_strange(offsets, touch, home)] = -1
    free = home < 0 if stay else np.ones(len(home), np.bool_)
    alone = free & (times == 1)
    home[alone] = touch[offsets[:-1][alone]]  # nothing of these travels
    order = np.random.default_rng(seed).permutation(np.flatnonzero(free & (times > 1))).astype(np.int32)
    if weights is not None:
        order = order[np.argsort(-weights[order], kind="stable")]
    load, chosen = _load(offsets, touch, home, weights, parts), home[order]
    listed, weighs = touching(sets[order], parts), None if weights is None else weights[order]
    for _ in range(SWEEPS):
        if not sweep(*listed, weighs, None, True, chosen, load):
            break
    home[order] = chosen
    deal_unused(home, parts)
    return home


@compiled
def _strange(offsets: Counts, touch: Parts, home: Parts) -> NDArray[np.bool_]:
    """Return whether a column's home does not touch it, though other parts do."""
    strange = offsets[1:] > offsets[:-1]
    for column in range(len(home)):
        for at in range(offsets[column], offsets[column + 1]):
            if touch[at] == home[column]:
                strange[column] = False
    return strange


@compiled
def _load(offsets: Counts, touch: Parts, home: Parts, weights: Weights | None, parts: int) -> Counts:
    """Return the traffic of each part for the columns that have a home."""
    load = np.zeros(parts, np.int64)
    for column in range(len(home)):
        if home[column] >= 0:
            weight = 1 if weights is None else weights[column]
            for at in range(offsets[column], offsets[column + 1]):
                if touch[at] != home[column]:
                    load[touch[at]] += weight
                    load[home[column]] += weight
    return load
