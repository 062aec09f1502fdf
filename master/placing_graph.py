"""The graph that a run's placement is of: the vertices that f runs on, and the rows of arrays that they touch.

It is bipartite; the rows of all types that hold arrays come one type after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gridml.model.graph import Edges, Graph
from gridml.model.program import Program
from gridml.model.vertex import describe
from master.decisions.leasing import SMALLEST
from master.decisions.placing import PlacingFacts
from master.store.rows import row_bytes
from master.store.spec import shuffle_of

if TYPE_CHECKING:  # scipy and numba, which a run without a placement does without
    from gridml.placement.bipartite import Bipartite


@dataclass(frozen=True)
class Side:
    """Edges of the driving vertices to a type that has `count` rows of so many bytes each."""

    type: str
    edges: Edges
    count: int
    row_bytes: int


def sides_of(graph: Graph, driver: str) -> Iterator[Side]:
    """The edges that decide which rows a vertex needs. Those that lead all to one row decide nothing."""
    table = graph.tables[driver]
    for name, edges in table.edges.items():
        to = graph.tables[describe(table.type.target(name)).name]
        rows = to.type.replicated and to.type.arrays and not to.type.modules
        if rows and to.count > 1 and edges.constant is None:
            yield Side(to.type.name, edges, to.count, row_bytes(to.columns))


def facts_of(
    program: Program, graph: Graph, sides: Sequence[Side], *, asked: str, workers: int, chunk: int | None = None
) -> PlacingFacts:
    """What is to be known before a placement that was `asked` for. `chunk` is the size of chunks, None: chosen."""
    types = {side.type: side for side in sides}.values()
    connected = (not describe(table.type.target(name)).replicated for table in graph.local for name in table.edges)
    fewest = max(SMALLEST * (program.update.batch or 1), program.fewest)
    return PlacingFacts(
        asked=asked,
        workers=workers,
        vertices=graph.tables[program.driving(graph)].count,
        edges=sum(len(side.edges.targets) for side in sides),
        rows=sum(side.count for side in types),
        row_bytes=sum(side.count * side.row_bytes for side in types),
        chunk=chunk or fewest,
        fewest=fewest,
        shuffled=shuffle_of(program, graph) != "none",
        connected=any(connected),
        drop_last=program.update.drop_last,
        modules=any(table.type.modules for table in graph.replicated),
    )


def bipartite_of(sides: Sequence[Side], vertices: int) -> tuple[Bipartite, NDArray[np.int64]]:
    """Return the graph of vertices and rows, and the bytes of each row, int64 (rows,)."""
    from gridml.placement.bipartite import Bipartite

    types = {side.type: side for side in sides}
    counts = [side.count for side in types.values()]
    first = dict(zip(types, np.cumsum([0, *counts]).tolist(), strict=False))  # column of a type's rows
    weights = np.repeat(np.array([side.row_bytes for side in types.values()], np.int64), counts)
    if len(sides) == 1:
        edges = sides[0].edges
        offsets = np.arange(vertices + 1) * edges.degree if edges.offsets is None else edges.offsets
        return Bipartite.from_rows(offsets, edges.targets, len(weights)), weights
    rows, columns = [], []
    for side in sides:
        degrees = side.edges.degree if side.edges.offsets is None else np.diff(side.edges.offsets)
        rows.append(np.repeat(np.arange(vertices, dtype=np.int32), degrees))
        columns.append((np.asarray(side.edges.targets) + first[side.type]).astype(np.int32))
    shape = vertices, len(weights)
    return Bipartite.from_edges(np.concatenate(rows), np.concatenate(columns), shape), weights


def by_chance(graph: Bipartite, weights: NDArray[np.int64], parts: int, seed: int) -> float:
    """Bytes of rows that a part touches on average where vertices are dealt out by chance."""
    from gridml.placement.overlap import overlap

    dealt = (np.random.default_rng(seed).permutation(graph.rows) % parts).astype(np.int32)
    return float(np.diag(overlap(graph, dealt, parts, weights)).mean())
