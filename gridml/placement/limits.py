"""What no placement can go below."""

from __future__ import annotations

import numpy as np

from gridml.placement.bipartite import Bipartite


def least_memory(graph: Bipartite, parts: int) -> int:
    """Return what the largest part touches at least, in weights of columns: the largest row, or an even share."""
    sizes = graph.sizes
    used = int(sizes[np.bincount(graph.neighbours, minlength=graph.columns) > 0].sum())
    ends = np.concatenate([[0], np.cumsum(sizes[graph.neighbours])])[graph.offsets]
    return max(int(np.diff(ends).max()), -(-used // parts))
