"""What a graph is made of, from the forms in which data come: edges from a list, two classes as signs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import Edges, csr
from gridml.model.order import is_dense


def edge_list(
    source: Any, target: Any, vertices: int, weight: Any = None, *, both: bool = False, **fields: Any
) -> Edges:
    """Make edges from two arrays (m,): edge e leads from the vertex `source[e]`, one of `vertices`, to `target[e]`; and
    back, if `both`, with the same weight and fields.

        links = gridml.edge_list(source, target, pages)
        g.add(Page, rank=1 / pages, links=links)

    `target`, `weight` and `fields` are as for `gridml.csr`. The edges of a vertex ascend by their targets, as threads
    want them, and those to the same target keep their order. `lengths` of what is returned, int64 (vertices,), are how
    many edges each has. Raises ProgramError for sources that are no whole numbers from 0 to below `vertices`, for
    such targets if `both`, and as `csr` does.
    """
    # Deferred, because numba takes a quarter of a second.
    from gridml.model.transposed import EdgeValues, grouped, transposed

    starts, ends = np.asarray(source), np.asarray(target)
    if not len(starts):
        starts = starts.astype(np.int64)  # numpy makes an empty list float64
        ends = ends if len(ends) else ends.astype(np.int64)
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or starts.shape != ends.shape:
        raise ProgramError(
            f"edge_list got {starts.dtype} sources of shape {starts.shape} and targets of shape {ends.shape}; expected "
            f"one whole number for each edge, the source, and one target."
        )
    _check_vertices("from", starts, vertices)
    if both:
        _check_vertices("to", ends, vertices)
    named = {name: np.asarray(values) for name, values in {"": weight, **fields}.items() if np.ndim(values) > 0}
    carried = EdgeValues(list(named.values()))
    rows = vertices if both else 0
    if not both and ends.dtype.kind in "iu" and is_dense(ends, len(ends) + vertices):
        rows = int(ends.max()) + 1
    if both or 0 < rows <= 2**31:
        # By target, and then by source. Targets, by which the second sort takes edges, ascend.
        by_target, sources, moved = grouped(ends, starts, rows, carried.first, both=both)
        offsets, targets, moved = transposed(by_target, sources, vertices, moved)
        arrays = carried.sorted(moved)
    else:
        first = np.argsort(ends, kind="stable")
        offsets, _, order = transposed(np.arange(len(starts) + 1), starts[first], vertices, first)
        targets, arrays = ends[order], [values[order] for values in carried.values]
    sorted_ones = {"": weight, **fields, **dict(zip(named, arrays, strict=True))}
    return replace(csr(offsets, targets, sorted_ones.pop(""), **sorted_ones), symmetric=both)


def _check_vertices(direction: str, ids: NDArray[Any], vertices: int) -> None:
    if ids.dtype.kind not in "iu":
        raise ProgramError(f"edge_list got edges {direction} {ids.dtype}; expected whole numbers from 0 on.")
    if len(ids) and not (ids.min() >= 0 and ids.max() < vertices):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ProgramError(f"edge_list got an edge {direction} vertex {wrong}; expected 0 to {vertices - 1}.")


def signs(labels: Any) -> NDArray[np.float64]:
    """Return two classes as 1 and -1, float64 (n,): labels of 1 and -1, of 1 and 0, or booleans.

        g.add(Sample, label=gridml.signs(labels), ...)

    Raises ProgramError for other labels, with which a loss of labels of 1 and -1 would have no meaning.
    """
    given = np.asarray(labels)
    found = np.unique(given) if given.ndim == 1 and given.dtype.kind in "biuf" else given.reshape(-1)[:3]
    if given.ndim != 1 or given.dtype.kind not in "biuf" or not ({*found} <= {-1, 1} or {*found} <= {0, 1}):
        shown = ", ".join(map(str, found[:5])) + ", ..." * (len(found) > 5)
        raise ProgramError(
            f"signs got {given.dtype} labels of shape {given.shape}, among them {shown}; expected one for each sample, "
            f"1 and -1, or 1 and 0. Of more than two classes, compare one with the rest: signs(labels == one)."
        )
    return np.where(given > 0, 1.0, -1.0)
