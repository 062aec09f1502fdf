"""A general graph as a bipartite one (Li, Andersen and Smola, 2015, section 2.2): what is trained are rows, what is
held are the vertices.

A graph is given as rows and columns of the same numbers, an edge as either of its two directions or as both; rows and
columns need not be as many. Loops are no edges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled

BIPARTITE, VERTICES, EDGES, CLIQUES = KINDS = ("bipartite", "vertices", "edges", "cliques")
Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]


def vertices(graph: Bipartite) -> Bipartite:
    """Each vertex is a row, which touches itself and its neighbours: U = V, and both have the same numbers."""
    across, own = both_ways(graph), np.arange(max(graph.rows, graph.columns))
    rows = np.concatenate([np.repeat(own, across.degrees), own])
    return Bipartite.from_edges(rows, np.concatenate([across.neighbours, own]), (len(own), len(own)))


def edges(graph: Bipartite) -> Bipartite:
    """Each edge is a row, which touches its two ends, the smaller first: by that one, and then by the other."""
    across = both_ways(graph)
    from_ = np.repeat(np.arange(across.rows, dtype=np.int32), across.degrees)
    ends = np.stack([from_, across.neighbours], axis=1)[from_ < across.neighbours]
    return Bipartite(2 * np.arange(len(ends) + 1, dtype=np.int64), ends.ravel(), across.columns)


def cliques(graph: Bipartite) -> Bipartite:
    """Each row is a clique, and touches its vertices: as a factor of a graphical model does. Every edge is in one.

    Edges are gone through in order; one that is in no clique yet is made larger by the common neighbours in order as
    long as all are neighbours of one another. A vertex without edges is a clique of its own.
    """
    across = both_ways(graph)
    offsets, members = _cover(across.offsets, across.neighbours)
    return Bipartite.from_rows(offsets, members, across.columns)


_ROWS: dict[str, Callable[[Bipartite], Bipartite]] = {VERTICES: vertices, EDGES: edges, CLIQUES: cliques}


def as_bipartite(graph: Bipartite, kind: str) -> Bipartite:
    """Return the graph whose rows are vertices, edges or cliques of a general one; `bipartite` is as it is.

    Raises UsageError for another kind, and for a graph without an edge between two vertices.
    """
    if kind not in KINDS:
        raise UsageError(f"rows are asked for as {kind!r}; expected {', '.join(KINDS)}.")
    if kind == BIPARTITE:
        return graph
    if not both_ways(graph).edges:
        raise UsageError(f"the graph has no edge between two vertices; expected one with edges for rows as {kind}.")
    return _ROWS[kind](graph)


def both_ways(graph: Bipartite) -> Bipartite:
    """Return every edge in both directions, once; rows and columns are all vertices."""
    count = max(graph.rows, graph.columns)
    rows = np.repeat(np.arange(graph.rows, dtype=np.int32), graph.degrees)
    between = rows != graph.neighbours
    u, v = rows[between], graph.neighbours[between]
    return Bipartite.from_edges(np.concatenate([u, v]), np.concatenate([v, u]), (count, count))


@compiled
def _cover(offsets: Numbers, neighbours: Ids) -> tuple[Numbers, Ids]:
    """Return cliques that hold every edge, as offsets into their vertices. `neighbours` ascend in a row."""
    count = len(offsets) - 1
    covered = np.zeros(len(neighbours), np.bool_)
    adjacent = np.zeros(count, np.int32)  # members of the clique that a vertex is a neighbour of
    members = np.empty(len(neighbours) + count, np.int32)
    starts = np.zeros(len(neighbours) // 2 + count + 1, np.int64)
    found, used = 0, 0
    for u in range(count):
        if offsets[u] == offsets[u + 1]:  # for these there is always room
            members[used] = u
            used += 1
            found += 1
            starts[found] = used
        for edge in range(offsets[u], offsets[u + 1]):
            v = neighbours[edge]
            if v < u or covered[edge]:
                continue
            first = used
            if used + 1 + offsets[u + 1] - offsets[u] + count > len(members):
                longer = np.empty(2 * len(members) + count, np.int32)
                longer[:used] = members[:used]
                members = longer
            members[used], members[used + 1] = u, v
            used += 2
            for at in range(offsets[u], offsets[u + 1]):
                adjacent[neighbours[at]] += 1
            for at in range(offsets[v], offsets[v + 1]):
                adjacent[neighbours[at]] += 1
            for at in range(offsets[u], offsets[u + 1]):
                w = neighbours[at]
                if adjacent[w] == used - first:
                    for far in range(offsets[w], offsets[w + 1]):
                        adjacent[neighbours[far]] += 1
                    members[used] = w
                    used += 1
            clique = members[first:used]
            adjacent[neighbours[offsets[u] : offsets[u + 1]]] = 0
            for a in clique:
                adjacent[neighbours[offsets[a] : offsets[a + 1]]] = 0
                begin, end = offsets[a], offsets[a + 1]
                for b in clique:
                    if b != a:
                        covered[begin + np.searchsorted(neighbours[begin:end], b)] = True
            found += 1
            starts[found] = used
    return starts[: found + 1].copy(), members[:used].copy()
