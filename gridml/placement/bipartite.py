"""A bipartite graph: rows, which are data, and the columns that each of them touches, which are parameters.

A general graph becomes a bipartite one (Li, Andersen and Smola, 2015, section 2.2): what is trained are rows, what
is held are the vertices. It is given as rows and columns of the same numbers, an edge as either of its two
directions or as both; there may be more rows than columns or fewer. Loops are no edges. `Numbered` is a graph with
the names that its rows and columns have at their origin.
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

from gridml.errors import UsageError
from gridml.placement.compiled import compiled

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]
Weights = NDArray[np.int64]
MAX_COUNT = 2**31 - 1  # rows, or columns: their numbers are int32
PIECE = 1 << 20  # edges that are looked at together, so that a graph may be larger than memory
MAX_TOTAL_WEIGHT = 2**53  # all rows, or all columns together: sums up to it are exact as floats, too


class BothSides(NamedTuple):
    """A graph as loops take it that go from rows to columns and back: row i touches
    `neighbours[offsets[i]:offsets[i + 1]]`, column v is touched by `rows_of[column_offsets[v]:column_offsets[v + 1]]`.
    """

    offsets: Offsets
    neighbours: Ids
    column_offsets: Offsets
    rows_of: Ids


@dataclass(frozen=True)
class Bipartite:
    """Row i touches the columns `neighbours[offsets[i]:offsets[i + 1]]`, each of them once.

    `offsets` int64 (rows + 1,), `neighbours` int32 (edges,), `columns` is how many there are. `row_weights` int64
    (rows,) are the work of each row, `column_weights` int64 (columns,) the bytes of each column; None: one each. Not
    checked here: make one by `from_rows` or `from_edges`, and weights by `weighted`.
    """

    offsets: Offsets
    neighbours: Ids
    columns: int
    row_weights: Weights | None = None
    column_weights: Weights | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.neighbours)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """Columns that each row touches, int64 (rows,)."""
        return np.diff(self.offsets)

    @cached_property
    def transposed(self) -> Bipartite:
        """The same graph from the columns' side; rows of a column are in ascending order."""
        ones = np.ones(self.edges, np.int8)
        by_column = csr_array((ones, self.neighbours, self.offsets), shape=(self.rows, self.columns)).tocsc()
        return Bipartite(by_column.indptr.astype(np.int64), by_column.indices.astype(np.int32), self.rows)

    @property
    def both_sides(self) -> BothSides:
        """The arrays of rows and of columns; rows of a column are in ascending order."""
        across = self.transposed
        return BothSides(self.offsets, self.neighbours, across.offsets, across.neighbours)

    @property
    def mapped(self) -> bool:
        """Whether the neighbours stay in their file, because they may be more than there is memory for."""
        return isinstance(self.neighbours, np.memmap)

    def lists(self, rows: Ids) -> tuple[Offsets, Ids, Ids]:
        """Return offsets, neighbours and places: row rows[i] touches neighbours[offsets[p]:offsets[p + 1]] with p =
        places[i]. Of a mapped graph these rows, which ascend, are read, and nothing else."""
        if not self.mapped:
            return self.offsets, self.neighbours, rows
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        offsets = np.concatenate([[0], np.cumsum(ends - begins)])
        neighbours = np.empty(int(offsets[-1]), np.int32)
        firsts = np.flatnonzero(np.concatenate([[True], begins[1:] != ends[:-1]]))  # of rows that follow on one another
        for first, after in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            neighbours[offsets[first] : offsets[after]] = self.neighbours[begins[first] : ends[after - 1]]
        self._read(neighbours)
        return offsets, neighbours, np.arange(len(rows), dtype=np.int32)

    def pieces(self, edges: int = PIECE) -> Iterator[tuple[int, Bipartite]]:
        """All rows in their order, as graphs in memory that have about so many edges, each with the number of its first
        row."""
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
        """Look at what was read of a mapped graph, and let go of the pages, which would count as this process's memory.

        Raises UsageError for a neighbour that is none of the columns.
        """
        if len(neighbours) and not (neighbours.min() >= 0 and neighbours.max() < self.columns):
            wrong = neighbours[(neighbours < 0) | (neighbours >= self.columns)][0]
            raise UsageError(f"a row touches column {wrong:,}; expected one of 0 to {self.columns - 1:,}")
        file: Any = self.neighbours.base
        if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            file.madvise(mmap.MADV_DONTNEED)

    def only(self, rows: NDArray[np.integer[Any]]) -> Bipartite:
        """Return the graph of these rows alone, in their order, with all columns and their weights; the work of rows is
        left out."""
        begins = self.offsets[rows]
        degrees = self.offsets[np.asarray(rows) + 1] - begins
        offsets = np.concatenate([[0], np.cumsum(degrees)])
        edges = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], degrees)
        return Bipartite(offsets, self.neighbours[edges], self.columns, None, self.column_weights)

    @property
    def works(self) -> Weights:
        """The work of each row, int64 (rows,), of those without weights, too."""
        return np.ones(self.rows, np.int64) if self.row_weights is None else self.row_weights

    @property
    def sizes(self) -> Weights:
        """The bytes of each column, int64 (columns,), of those without weights, too."""
        return np.ones(self.columns, np.int64) if self.column_weights is None else self.column_weights

    @property
    def used(self) -> int:
        """What the columns weigh that any row touches."""
        return int(self.sizes[np.bincount(self.neighbours, minlength=self.columns) > 0].sum())

    @property
    def work(self) -> int:
        """Of all rows."""
        return self.rows if self.row_weights is None else int(self.row_weights.sum())

    @property
    def heaviest(self) -> int:
        """The work of the row that has most, at least 1."""
        return 1 if self.row_weights is None else max(1, int(self.row_weights.max(initial=1)))

    def weighted(self, rows: ArrayLike | None = None, columns: ArrayLike | None = None) -> Bipartite:
        """Return the graph with the work of each row, or the bytes of each column, or both; without either as it is.

        Raises UsageError for another number of them, for what is no whole number from 0, and where all are 0.
        """
        works, sizes = self.row_weights, self.column_weights
        if rows is not None:
            works = _weights("row", rows, self.rows)
        if columns is not None:
            sizes = _weights("column", columns, self.columns)
        return replace(self, row_weights=works, column_weights=sizes)

    @staticmethod
    def from_rows(offsets: ArrayLike, neighbours: ArrayLike, columns: int) -> Bipartite:
        """Return the graph with these rows; a column that stands in a row twice is touched once.

        Raises UsageError for offsets that do not ascend from 0 to the number of neighbours, and for a neighbour that is
        none of the columns.
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
        """Return the graph of edges from rows[i] to columns[i]; without a `shape` it is as large as they need.

        Raises UsageError for two lengths, and for a number outside of the shape.
        """
        u, v = (a if a.dtype.kind == "i" else a.astype(np.int64) for a in map(np.asarray, (rows, columns)))
        if u.shape != v.shape or u.ndim != 1:
            raise UsageError(f"an edge is a row and a column: got {u.shape} rows and {v.shape} columns")
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
        # Counted into their rows, which is several times as fast as sorting.
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
            f"the weight of {side} {wrong[0]:,} is {weights[wrong[0]]}; expected a whole number from 0: of fractions "
            "give multiples, rounded."
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


@dataclass(frozen=True)
class Numbered:
    """The numbers that rows and columns have in a file, ascending, int64 (rows,) and (columns,). None: their places are
    their numbers, or, of rows that are edges or cliques, they have none."""

    graph: Bipartite
    rows: Numbers | None = None
    columns: Numbers | None = None
