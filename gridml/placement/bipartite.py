"""Bipartite graphs: rows are data, columns are parameters, and a row touches the columns that it needs.

A general graph is converted to a bipartite one (Li, Andersen and Smola, 2015, section 2.2): its vertices become the
columns, and its vertices, edges or cliques become the rows. A general graph is given as an adjacency matrix, in which
row i and column i are the same vertex. The matrix need not be square, nor symmetric: an edge is listed in one direction
or in both. Loops are ignored.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]
Weights = NDArray[np.int64]
MAX_COUNT = 2**31 - 1  # maximum number of rows, and also of columns; both are numbered in int32
PIECE = 1 << 20  # edges that are processed at once, so that a graph can be larger than memory
MAX_TOTAL_WEIGHT = 2**53  # maximum sum of row weights, and of column weights: such sums are exact in float64


class BothSides(NamedTuple):
    """The adjacency of a graph by rows and by columns, for kernels that need both."""

    offsets: Offsets
    neighbours: Ids  #: row i touches neighbours[offsets[i]:offsets[i + 1]]
    column_offsets: Offsets
    rows_of: Ids  #: column v is touched by rows_of[column_offsets[v]:column_offsets[v + 1]]


@dataclass(frozen=True)
class Bipartite:
    """A bipartite graph in CSR form. The constructor checks nothing: use `from_rows`, `from_edges` and `weighted`."""

    offsets: Offsets  #: int64 (rows + 1,)
    neighbours: Ids  #: int32 (edges,): row i touches neighbours[offsets[i]:offsets[i + 1]], without duplicates
    columns: int
    row_weights: Weights | None = None  #: the work of each row, int64 (rows,); None: 1 each
    column_weights: Weights | None = None  #: the bytes of each column, int64 (columns,); None: 1 each

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.neighbours)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """The number of columns that each row touches, int64 (rows,)."""
        return np.diff(self.offsets)

    @cached_property
    def transposed(self) -> Bipartite:
        """The graph with rows and columns exchanged; the rows of a column ascend."""
        ones = np.ones(self.edges, np.int8)
        by_column = csr_array((ones, self.neighbours, self.offsets), shape=(self.rows, self.columns)).tocsc()
        return Bipartite(by_column.indptr.astype(np.int64), by_column.indices.astype(np.int32), self.rows)

    @property
    def both_sides(self) -> BothSides:
        """The adjacency by rows and by columns; the rows of a column ascend."""
        across = self.transposed
        return BothSides(self.offsets, self.neighbours, across.offsets, across.neighbours)

    @property
    def mapped(self) -> bool:
        """True if the neighbours are memory-mapped; such neighbours can be larger than memory."""
        return isinstance(self.neighbours, np.memmap)

    def lists(self, rows: Ids) -> tuple[Offsets, Ids, Ids]:
        """Return the columns of some rows as offsets, neighbours and places. With p = places[i], row rows[i] touches
        neighbours[offsets[p]:offsets[p + 1]]. `rows` must ascend. If the graph is mapped, only these rows are read."""
        if not self.mapped:
            return self.offsets, self.neighbours, rows
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        offsets = np.concatenate([[0], np.cumsum(ends - begins)])
        neighbours = np.empty(int(offsets[-1]), np.int32)
        # The first row of each run of consecutive rows. Each run is read at once.
        firsts = np.flatnonzero(np.concatenate([[True], begins[1:] != ends[:-1]]))
        for first, after in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            neighbours[offsets[first] : offsets[after]] = self.neighbours[begins[first] : ends[after - 1]]
        self._read(neighbours)
        return offsets, neighbours, np.arange(len(rows), dtype=np.int32)

    def pieces(self, edges: int = PIECE) -> Iterator[tuple[int, Bipartite]]:
        """Split the graph into pieces of consecutive rows with about `edges` edges, held in memory. Yield the number of
        the first row and the graph of each piece."""
        first = 0
        while first < self.rows:
            after = int(np.searchsorted(self.offsets, self.offsets[first] + edges, side="right")) - 1
            after = min(self.rows, max(first + 1, after))
            if self.mapped:
                offsets, neighbours, _ = self.lists(np.arange(first, after, dtype=np.int32))
            else:
                offsets = self.offsets[first : after + 1]
                neighbours = self.neighbours[offsets[0] : offsets[-1]]
            yield first, Bipartite(offsets - offsets[0], neighbours, self.columns)
            first = after

    def _read(self, neighbours: Ids) -> None:
        """Check neighbours that were read from a mapped graph, and free the graph's pages. Raises UsageError for a
        neighbour that is not a column."""
        if len(neighbours) and not (neighbours.min() >= 0 and neighbours.max() < self.columns):
            wrong = neighbours[(neighbours < 0) | (neighbours >= self.columns)][0]
            raise UsageError(f"a row touches column {wrong:,}; expected one of 0 to {self.columns - 1:,}")
        # Drop the pages: they would count as memory of this process.
        file: Any = self.neighbours.base
        if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            file.madvise(mmap.MADV_DONTNEED)

    def only(self, rows: NDArray[np.integer[Any]]) -> Bipartite:
        """Return the subgraph of these rows, in the given order. It keeps all columns and their weights, but no row
        weights."""
        begins = self.offsets[rows]
        degrees = self.offsets[np.asarray(rows) + 1] - begins
        offsets = np.concatenate([[0], np.cumsum(degrees)])
        edges = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], degrees)
        return Bipartite(offsets, self.neighbours[edges], self.columns, None, self.column_weights)

    @property
    def works(self) -> Weights:
        """The work of each row, int64 (rows,); 1 each without weights."""
        return np.ones(self.rows, np.int64) if self.row_weights is None else self.row_weights

    @property
    def sizes(self) -> Weights:
        """The bytes of each column, int64 (columns,); 1 each without weights."""
        return np.ones(self.columns, np.int64) if self.column_weights is None else self.column_weights

    @property
    def used(self) -> int:
        """The total weight of the columns that at least one row touches."""
        return int(self.sizes[np.bincount(self.neighbours, minlength=self.columns) > 0].sum())

    @property
    def work(self) -> int:
        """The total work of all rows."""
        return self.rows if self.row_weights is None else int(self.row_weights.sum())

    @property
    def heaviest(self) -> int:
        """The largest work of a row, at least 1."""
        return 1 if self.row_weights is None else max(1, int(self.row_weights.max(initial=1)))

    def weighted(self, rows: ArrayLike | None = None, columns: ArrayLike | None = None) -> Bipartite:
        """Return the graph with new row weights, column weights, or both; None keeps the present ones.

        Raises UsageError for a wrong number of weights, for a weight that is negative or not whole, and if the weights
        sum to 0 or to more than MAX_TOTAL_WEIGHT.
        """
        works, sizes = self.row_weights, self.column_weights
        if rows is not None:
            works = _weights("row", rows, self.rows)
        if columns is not None:
            sizes = _weights("column", columns, self.columns)
        return replace(self, row_weights=works, column_weights=sizes)

    @staticmethod
    def from_rows(offsets: ArrayLike, neighbours: ArrayLike, columns: int) -> Bipartite:
        """Build a graph from CSR arrays. Duplicate columns of a row are merged.

        Raises UsageError for offsets that do not ascend from 0 to the number of neighbours, and for a neighbour that is
        not a column.
        """
        starts, to = np.asarray(offsets), np.asarray(neighbours)
        if starts.ndim != 1 or not len(starts) or to.ndim != 1 or starts[0] != 0 or starts[-1] != len(to):
            raise UsageError(f"offsets must go from 0 to the {len(to):,} neighbours, got {_shown(starts)}")
        if (np.diff(starts) < 0).any():
            raise UsageError(f"offsets must ascend, got {_shown(starts)}")
        if not 0 <= columns <= MAX_COUNT or len(starts) - 1 > MAX_COUNT:
            raise UsageError(
                f"a graph has at most {MAX_COUNT:,} rows and columns, got {len(starts) - 1:,} and {columns:,}"
            )
        outside = np.flatnonzero((to < 0) | (to >= columns))
        if len(outside):
            row = int(np.searchsorted(starts, outside[0], side="right")) - 1
            raise UsageError(f"row {row:,} touches column {to[outside[0]]:,}; expected one of 0 to {columns - 1:,}")
        ones = np.ones(len(to), np.int8)
        matrix = csr_array((ones, to.astype(np.int32), starts.astype(np.int64)), shape=(len(starts) - 1, columns))
        matrix.sum_duplicates()
        return Bipartite(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), columns)

    @staticmethod
    def from_edges(rows: ArrayLike, columns: ArrayLike, shape: tuple[int, int] | None = None) -> Bipartite:
        """Build a graph from edges rows[i] → columns[i]. Without a `shape`, the largest numbers determine it.

        Raises UsageError for arrays of different lengths, and for a number outside of the shape.
        """
        u, v = (a if a.dtype.kind == "i" else a.astype(np.int64) for a in map(np.asarray, (rows, columns)))
        if u.shape != v.shape or u.ndim != 1:
            raise UsageError(f"edges must be two arrays of one length: got {u.shape} rows and {v.shape} columns")
        n, m = shape if shape is not None else (int(u.max(initial=-1)) + 1, int(v.max(initial=-1)) + 1)
        wrong = np.flatnonzero((u < 0) | (u >= n))
        if len(wrong):
            raise UsageError(f"edge {wrong[0]:,} leaves row {u[wrong[0]]:,}; expected one of 0 to {n - 1:,}")
        outside = np.flatnonzero((v < 0) | (v >= m))
        if len(outside):
            row, column = u[outside[0]], v[outside[0]]
            raise UsageError(f"row {row:,} touches column {column:,}; expected one of 0 to {m - 1:,}")
        if max(n, m) > MAX_COUNT:
            raise UsageError(f"a graph has at most {MAX_COUNT:,} rows and columns, got {n:,} and {m:,}")
        # scipy converts by counting, which is several times faster than sorting the edges.
        by_row = coo_array((np.ones(len(u), np.int8), (u, v)), shape=(n, m)).tocsr()
        by_row.sum_duplicates()
        return Bipartite(by_row.indptr.astype(np.int64), by_row.indices.astype(np.int32), m)


def _weights(side: str, given: ArrayLike, count: int) -> Weights:
    weights = np.asarray(given)
    if weights.shape != (count,) or weights.dtype.kind not in "iuf":
        shape = " × ".join(f"{size:,}" for size in weights.shape)
        raise UsageError(f"got {shape or 'one'} {side} weights ({weights.dtype}); expected {count:,} numbers.")
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= MAX_TOTAL_WEIGHT) & (weights == np.floor(weights))))
    if len(wrong):
        raise UsageError(
            f"the weight of {side} {wrong[0]:,} is {weights[wrong[0]]}; expected a whole number from 0. "
            "Multiply fractions by a constant, and round them."
        )
    total = weights.sum(dtype=np.float64)
    if not 0 < total <= MAX_TOTAL_WEIGHT and count:
        raise UsageError(
            f"the {side} weights sum to {total:g}; expected more than 0, and at most {MAX_TOTAL_WEIGHT:.0e}."
        )
    return weights.astype(np.int64)


def _shown(array: NDArray[Any]) -> str:
    return np.array2string(array, threshold=6, separator=", ")


BIPARTITE, VERTICES, EDGES, CLIQUES = KINDS = ("bipartite", "vertices", "edges", "cliques")
Numbers = NDArray[np.int64]


def vertices(graph: Bipartite) -> Bipartite:
    """Return the graph with a row for each vertex; the row touches the vertex and its neighbours (U = V)."""
    across, own = both_ways(graph), np.arange(max(graph.rows, graph.columns))
    rows = np.concatenate([np.repeat(own, across.degrees), own])
    return Bipartite.from_edges(rows, np.concatenate([across.neighbours, own]), (len(own), len(own)))


def edges(graph: Bipartite) -> Bipartite:
    """Return the graph with a row for each edge; the row touches the edge's two ends. Rows are sorted by the smaller
    end, then by the larger."""
    across = both_ways(graph)
    from_ = np.repeat(np.arange(across.rows, dtype=np.int32), across.degrees)
    ends = np.stack([from_, across.neighbours], axis=1)[from_ < across.neighbours]
    return Bipartite(2 * np.arange(len(ends) + 1, dtype=np.int64), ends.ravel(), across.columns)


def cliques(graph: Bipartite) -> Bipartite:
    """Cover all edges by cliques. Return the graph with a row for each clique, which touches the clique's vertices.

    This is the shape of a graphical model with a factor for each clique. The cover is greedy: edges are visited in
    order, and an edge that no clique covers yet starts a new one. Then the other vertices are visited in order, and a
    vertex that is adjacent to all vertices of the clique joins it. A vertex without edges is a clique by itself.
    """
    across = both_ways(graph)
    offsets, members = _cover(across.offsets, across.neighbours)
    return Bipartite.from_rows(offsets, members, across.columns)


_ROWS: dict[str, Callable[[Bipartite], Bipartite]] = {VERTICES: vertices, EDGES: edges, CLIQUES: cliques}


def as_bipartite(graph: Bipartite, kind: str) -> Bipartite:
    """Convert a general graph to one whose rows are its vertices, edges or cliques. With the kind `bipartite`, return
    the graph unchanged.

    Raises UsageError for an unknown kind, and for a graph without an edge between two vertices.
    """
    if kind not in KINDS:
        raise UsageError(f"the kind of rows is {kind!r}; expected {', '.join(KINDS)}.")
    if kind == BIPARTITE:
        return graph
    if not both_ways(graph).edges:
        raise UsageError(f"the graph has no edge between two vertices; expected one with edges for rows as {kind}.")
    return _ROWS[kind](graph)


def both_ways(graph: Bipartite) -> Bipartite:
    """Return the graph with every edge in both directions, without duplicates or loops. Rows and columns are all
    vertices."""
    count = max(graph.rows, graph.columns)
    rows = np.repeat(np.arange(graph.rows, dtype=np.int32), graph.degrees)
    between = rows != graph.neighbours
    u, v = rows[between], graph.neighbours[between]
    return Bipartite.from_edges(np.concatenate([u, v]), np.concatenate([v, u]), (count, count))


@compiled
def _cover(offsets: Numbers, neighbours: Ids) -> tuple[Numbers, Ids]:
    """Return cliques that cover every edge: their offsets, and their vertices. The neighbours of a row must ascend."""
    count = len(offsets) - 1
    covered = np.zeros(len(neighbours), np.bool_)
    adjacent = np.zeros(count, np.int32)  # for each vertex, the number of its neighbours in the present clique
    members = np.empty(len(neighbours) + count, np.int32)
    starts = np.zeros(len(neighbours) // 2 + count + 1, np.int64)
    found, used = 0, 0
    for u in range(count):
        if offsets[u] == offsets[u + 1]:  # a clique by itself: `members` has room for each vertex
            members[used] = u
            used += 1
            found += 1
            starts[found] = used
        for edge in range(offsets[u], offsets[u + 1]):
            v = neighbours[edge]
            if v < u or covered[edge]:
                continue
            first = used
            # Cliques overlap, so there can be more members than edges.
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


@dataclass(frozen=True)
class Numbered:
    """A graph, with the numbers that its rows and columns have in the file it was read from.

    `rows` and `columns` are None if the numbers are the positions. `rows` is also None if the rows are edges or
    cliques, which have no numbers.
    """

    graph: Bipartite
    rows: Numbers | None = None  #: int64 (rows,), ascending
    columns: Numbers | None = None  #: int64 (columns,), ascending
