"""Edges from a list of them in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import Edges, csr
from gridml.model.order import is_dense


def edge_list(source: Any, target: Any, vertices: int, weight: Any = None, **fields: Any) -> Edges:
    """Make edges from two arrays (m,): edge e leads from the vertex `source[e]`, one of `vertices`, to `target[e]`.

        links = gridml.edge_list(source, target, pages)
        g.add(Page, rank=1 / pages, links=links)

    `target`, `weight` and `fields` are as for `gridml.csr`. The edges of a vertex ascend by their targets, as threads
    want them, and those to the same target keep their order. `lengths` of what is returned, int64 (vertices,), are how
    many edges each has. Raises ProgramError for sources that are no whole numbers from 0 to below `vertices`, and as
    `csr` does.
    """
    from gridml.model.transposed import transposed  # deferred, because numba takes a quarter of a second

    starts, ends = np.asarray(source), np.asarray(target)
    if not len(starts):
        starts = starts.astype(np.int64)  # numpy makes an empty list float64
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or starts.shape != ends.shape:
        raise ProgramError(
            f"edge_list got {starts.dtype} sources of shape {starts.shape} and targets of shape {ends.shape}; expected "
            f"one whole number for each edge, the source, and one target."
        )
    if len(starts) and not (starts.min() >= 0 and starts.max() < vertices):
        wrong = starts.min() if starts.min() < 0 else starts.max()
        raise ProgramError(f"edge_list got an edge from vertex {wrong}; expected 0 to {vertices - 1}.")
    # Position e is a row with one end; so the rows by their ends are sorted. Once by target, and then by source.
    rows = np.arange(len(starts) + 1)
    by_target: NDArray[Any]
    if ends.dtype.kind in "iu" and is_dense(ends, len(ends)):
        _, by_target, _ = transposed(rows, ends, int(ends.max()) + 1, places=False)
    else:
        by_target = np.argsort(ends, kind="stable")
    offsets, by_source, _ = transposed(rows, starts[by_target], vertices, places=False)
    order = by_target[by_source]
    each = {name: values if np.ndim(values) == 0 else np.asarray(values)[order] for name, values in fields.items()}
    weight = weight if weight is None or np.ndim(weight) == 0 else np.asarray(weight)[order]
    return csr(offsets, ends[order], weight, **each)
