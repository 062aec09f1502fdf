"""What no placement can go below."""

from __future__ import annotations

import numpy as np

from gridml.placement.bipartite import Bipartite


def least_memory(graph: Bipartite, parts: int) -> int:
    """Return what the largest part touches at least, in weights of columns: the largest row, or an even share."""
    ends = np.concatenate([[0], np.cumsum(graph.sizes[graph.neighbours])])[graph.offsets]
    return max(int(np.diff(ends).max()), -(-graph.used // parts))


def advice(graph: Bipartite, limit: int, slack: float) -> str:
    """Return what to ask for where a `limit` of memory is kept by no placement, but a larger one is."""
    largest = least_memory(graph, graph.rows)  # the largest row: no even share of so many parts is more
    if limit < largest:
        return f"Ask for that: one row alone touches {largest:,}, on however many parts."
    return f"Ask for that, for more parts, or for more slack than {slack}."
