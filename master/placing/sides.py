"""The rows that vertices need, as a bipartite graph: one side has the vertices that f runs on, the other has the rows.

Rows are replicated rows of arrays, to which edges lead. Where a pass is a superstep, local vertices that are linked
read one another as the last pass left them; then rows are these vertices, too, and each vertex needs itself and its
neighbours. The vertices that a part needs and does not have are its *ghosts*: their values travel to it in each pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gridml.model.graph import Edges, Graph
from gridml.model.ticks import Ticks
from gridml.model.vertex import describe
from master.store.versions import row_bytes

if TYPE_CHECKING:
    from gridml.placement.bipartite import Bipartite


@dataclass(frozen=True)
class Side:
    """Edges of the driving vertices to the rows of one type."""

    type: str
    edges: Edges
    count: int  #: the number of rows of the type
    row_bytes: int  #: the bytes of one row
    is_own: bool = False  #: True: the rows are the driving vertices themselves


def sides_of(graph: Graph, driver: str, *, linked: bool = False) -> Iterator[Side]:
    """Yield the edges that decide which rows a vertex needs. Edges that all lead to one row decide nothing, and
    those that chunks do not carry; both are left out. With `linked`, edges to local vertices count, too."""
    table = graph.tables[driver]
    for name, edges in table.edges.items():
        to = graph.tables[describe(table.type.target(name)).name]
        needed = to.type.arrays and not to.type.modules if to.type.replicated else linked
        if needed and to.count > 1 and edges.constant is None and not edges.stays:
            columns = {each: column for each, column in to.columns.items() if each not in to.shared}
            yield Side(to.type.name, edges, to.count, row_bytes(columns), to is table)


def bipartite_of(sides: Sequence[Side], vertices: int) -> tuple[Bipartite, NDArray[np.int64]]:
    """Return the graph of vertices and rows, and the bytes of each row, int64 (rows,)."""
    from gridml.placement.bipartite import Bipartite

    types = {side.type: side for side in sides}
    counts = [side.count for side in types.values()]
    first = _first(sides)
    weights = np.repeat(np.array([side.row_bytes for side in types.values()], np.int64), counts)
    if len(sides) == 1 and not sides[0].is_own:
        edges = sides[0].edges
        offsets = np.arange(vertices + 1) * edges.degree if edges.offsets is None else edges.offsets
        return Bipartite.from_rows(offsets, edges.targets, len(weights)), weights
    own = next((side.type for side in sides if side.is_own), None)
    rows, columns = [], []
    if own is not None:
        rows.append(np.arange(vertices, dtype=np.int32))
        columns.append((np.arange(vertices) + first[own]).astype(np.int32))
    for side in sides:
        degrees = side.edges.degree if side.edges.offsets is None else np.diff(side.edges.offsets)
        rows.append(np.repeat(np.arange(vertices, dtype=np.int32), degrees))
        columns.append((np.asarray(side.edges.targets) + first[side.type]).astype(np.int32))
    shape = vertices, len(weights)
    return Bipartite.from_edges(np.concatenate(rows), np.concatenate(columns), shape), weights


def _first(sides: Sequence[Side]) -> dict[str, int]:
    """Return the column of the first row of each type."""
    types = {side.type: side.count for side in sides}
    return dict(zip(types, np.cumsum([0, *types.values()]).tolist(), strict=False))


def ghosts(graph: Bipartite, sides: Sequence[Side], labels: NDArray[np.int32], parts: int) -> float | None:
    """Return the mean number of ghosts of a part; None if the vertices are not linked with one another."""
    from gridml.placement import quality

    own = next((side for side in sides if side.is_own), None)
    if own is None:
        return None
    first, counted = _first(sides)[own.type], np.zeros(graph.columns, np.int64)
    counted[first:][: own.count] = 1
    return float(quality.ghosts(graph.weighted(columns=counted), labels, parts, first).mean())


def at_random(vertices: int, parts: int, seed: int) -> NDArray[np.int32]:
    """Return the part of each vertex, int32 (vertices,), if they are dealt out at random."""
    return (np.random.default_rng(seed).permutation(vertices) % parts).astype(np.int32)


def in_order(order: NDArray[np.int64], parts: int, division: Ticks | None) -> NDArray[np.int32]:
    """Return the part of each vertex, int32 (vertices,), if parts are cut from vertices in this `order`, as a run with
    this division does; None: evenly."""
    if division is None:
        borders = np.arange(1, parts) * len(order) // parts
    else:
        borders = np.asarray(division.mini_batches(order).borders) // (division.phases * division.blocks)
    labels = np.empty(len(order), np.int32)
    labels[order] = np.repeat(np.arange(parts), np.diff(borders, prepend=0, append=len(order)))
    return labels
