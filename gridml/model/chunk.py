"""Chunks: the rows of a range of vertices and of everything that they touch, cut out of the graph, in training order.

A worker fetches a chunk for each lease. The driving table has the vertices that f is called for: its row i is the i-th
vertex to train. Edges lead to row positions in the chunk's tables. Replicated rows have only ids here: their values
come with the reply to a push.

A worker keeps rows of earlier chunks, so that they need not be sent again. The rows that a chunk itself carries are its
*own* rows. Fields that f does not change are sent for own rows only. For every other row, the chunk names the payload
(an encoded chunk, named by its SHA-256) that carries the row, and the row's position among that payload's own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import Components, Edges, Graph, Table
from gridml.model.order import Ids, ascending, is_dense
from gridml.model.ragged import Ragged, check
from gridml.model.shared import SharedColumn
from gridml.model.vertex import describe, reachable
from gridml.protocol import bundle
from gridml.protocol.payload import Arrived, Pieces

Array = NDArray[Any]
OWN = -1  # the `source` of a row that the chunk carries itself


@dataclass(frozen=True)
class Borrowed:
    """The location of each of the n rows of a table: in this chunk, or in an earlier payload."""

    payloads: tuple[str, ...]  #: SHA-256 of each payload that carries some of the rows
    source: NDArray[np.int16]  #: (n,) the position in `payloads`, or OWN
    at: NDArray[np.int32]  #: (n,) the position among the own rows of the table in that payload

    @property
    def own(self) -> NDArray[np.bool_]:
        """A mask of the rows that the chunk itself carries, bool (n,)."""
        own: NDArray[np.bool_] = self.source == OWN
        return own


_ID = np.dtype(np.int32).itemsize  # bytes of an id in a payload (int64 only for ids above 2**31)
_OFFSETS = {False: "offsets", True: "text"}  # name of a ragged column's offsets, by `Ragged.text`
BEFORE = "@before"  # suffix of a table that holds neighbours as they were when the superstep began (BSP)


@dataclass(frozen=True)
class ChunkTable:
    """Rows of one type. With `borrowed`, lasting and ragged fields have values for the own rows only."""

    type: str
    ids: Ids  #: indices in the graph, int64 (n,); ascending for replicated types
    fields: Mapping[str, Array]  #: (n, *shape) by field; empty for replicated types
    ragged: Mapping[str, Ragged] = field(default_factory=dict)
    shared: Mapping[str, SharedColumn] = field(default_factory=dict)  #: fields that the worker reads from a file itself
    lasting: tuple[str, ...] = ()  #: the array fields that f does not change
    borrowed: Borrowed | None = None  #: None if the chunk carries all rows

    @property
    def carried(self) -> Ids:
        """The ids of the own rows, int64."""
        return self.ids if self.borrowed is None else self.ids[self.borrowed.own]

    @property
    def carries(self) -> bool:
        """True if another chunk may borrow rows of this table."""
        return bool(self.lasting or self.ragged) and len(self.carried) > 0


@dataclass(frozen=True)
class ChunkEdges:
    """Edges of every row of one table along one edge field."""

    target: str  #: name of the table that the edges lead to
    index: Ids  #: positions in that table, int64 (m,), grouped by source row
    offsets: Ids | None = None  #: int64 (n+1,) borders of the groups; None if every row has `degree` edges
    degree: int = 1
    weight: Array | None = None  #: (m,)
    fields: Mapping[str, Array] = field(default_factory=dict)  #: (m, *shape) by further field of an edge
    places: Ids | None = None  #: int64 (m,) positions among all edges of the graph; None without mutable fields

    def span(self, start: int, stop: int) -> slice:
        """Return the part of `index` that belongs to rows [start, stop)."""
        if self.offsets is None:
            return slice(start * self.degree, stop * self.degree)
        return slice(int(self.offsets[start]), int(self.offsets[stop]))

    def one_each(self, start: int, stop: int) -> Ids | None:
        """Return the target of each of the rows [start, stop); None unless every row has exactly one edge."""
        if self.offsets is None:
            return self.index[start:stop] if self.degree == 1 else None
        return self.index[self.span(start, stop)] if (np.diff(self.offsets[start : stop + 1]) == 1).all() else None


@dataclass(frozen=True)
class Chunk:
    """The data of one lease."""

    driver: str  #: the type that f is called for
    #: by type name; a table of neighbours as they were before the superstep has the suffix `BEFORE`
    tables: Mapping[str, ChunkTable]
    edges: Mapping[str, ChunkEdges]  #: edges by "table/edge field"
    ends: Ids | None = None  #: driving rows at which components end; None if each row is a component
    phase: int | None = None  #: of the program's stages, to be run on all rows; None: all stages

    @property
    def count(self) -> int:
        return len(self.tables[self.driver].ids)

    def touched(self) -> dict[str, Ids]:
        """Return the ids of every table but the driving one, by table name. The ids of replicated types are the part of
        the replica that the chunk needs."""
        return {name: table.ids for name, table in self.tables.items() if name != self.driver}

    def encode(self) -> bytes:
        """Encode the chunk as one bundle."""
        return bytes(self.pieces())

    def pieces(self) -> Pieces:
        """Return the bundle of `encode` as pieces, which share the memory of the chunk's arrays. Columns that f reads
        are aligned to `ALIGNMENT_BYTES`."""
        tensors: dict[str, Array] = {}
        for name, table in self.tables.items():
            tensors[f"ids/{name}"] = bundle.narrowed(table.ids)
            tensors.update({f"field/{name}/{field}": column for field, column in table.fields.items()})
            if table.borrowed is not None:
                tensors[f"source/{name}"], tensors[f"at/{name}"] = table.borrowed.source, table.borrowed.at
            for field_name, column in table.ragged.items():
                tensors[f"{_OFFSETS[column.text]}/{name}/{field_name}"] = bundle.narrowed(column.offsets)
                tensors[f"values/{name}/{field_name}"] = column.values
        for name, edges in self.edges.items():
            tensors[f"edge/{name}/index"] = bundle.narrowed(edges.index)
            if edges.offsets is not None:
                tensors[f"edge/{name}/offsets"] = bundle.narrowed(edges.offsets)
            if edges.weight is not None:
                tensors[f"edge/{name}/weight"] = edges.weight
            tensors.update({f"edge/{name}/field/{each}": column for each, column in edges.fields.items()})
            if edges.places is not None:
                tensors[f"edge/{name}/places"] = bundle.narrowed(edges.places)
        if self.ends is not None:
            tensors["ends"] = bundle.narrowed(self.ends)
        message: dict[str, Any] = {
            "driver": self.driver,
            "tables": {name: table.type for name, table in self.tables.items()},
            "edges": {name: [edges.target, edges.degree] for name, edges in self.edges.items()},
            "shared": {
                name: {each: asdict(column) for each, column in table.shared.items()}
                for name, table in self.tables.items()
                if table.shared
            },
            "lasting": {name: list(table.lasting) for name, table in self.tables.items() if table.lasting},
            "borrowed": {
                name: list(table.borrowed.payloads) for name, table in self.tables.items() if table.borrowed is not None
            },
        }
        if self.phase is not None:
            message["phase"] = self.phase
        starts, parts = ("field/", "values/"), ("/weight", "/field/")
        read = frozenset(n for n in tensors if n.startswith(starts) or any(part in n for part in parts))
        return bundle.pieces(message, tensors, aligned=read)

    @staticmethod
    def decode(payload: Arrived) -> Chunk:
        """Decode a chunk from a bundle. Raises ValueError for anything else."""
        return Chunk._of(*bundle.decode(payload))

    @staticmethod
    def opened(payload: memoryview) -> Chunk:
        """Decode without a copy: the arrays share the payload's memory, which can be a mapped file."""
        return Chunk._of(*bundle.opened(payload))

    @staticmethod
    def _of(message: Mapping[str, Any], tensors: Mapping[str, Array]) -> Chunk:
        try:
            tables = {
                name: ChunkTable(
                    type_name,
                    _widened(tensors[f"ids/{name}"]),
                    _named(tensors, "field", name),
                    _ragged(tensors, name),
                    _shared(message["shared"].get(name, {})),
                    tuple(message["lasting"].get(name, ())),
                    _borrowed(message["borrowed"].get(name), tensors, name),
                )
                for name, type_name in message["tables"].items()
            }
            edges = {
                name: ChunkEdges(
                    target,
                    _widened(tensors[f"edge/{name}/index"]),
                    _widened(tensors.get(f"edge/{name}/offsets")),
                    degree,
                    tensors.get(f"edge/{name}/weight"),
                    _named(tensors, f"edge/{name}", "field"),
                    _widened(tensors.get(f"edge/{name}/places")),
                )
                for name, (target, degree) in message["edges"].items()
            }
            return Chunk(message["driver"], tables, edges, _widened(tensors.get("ends")), message.get("phase"))
        except (KeyError, TypeError, ValueError, AttributeError, ProgramError) as error:
            raise ValueError(f"not a chunk: {type(error).__name__}: {error}") from error


def _named(tensors: Mapping[str, Array], kind: str, table: str) -> dict[str, Array]:
    start = f"{kind}/{table}/"
    return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}


def _ragged(tensors: Mapping[str, Array], table: str) -> dict[str, Ragged]:
    values, columns = _named(tensors, "values", table), {}
    for text, kind in _OFFSETS.items():
        for name, offsets in _named(tensors, kind, table).items():
            columns[name] = Ragged(values[name], _widened(offsets), text)
            check(columns[name], f"{table}.{name}")
    return columns


def _shared(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, SharedColumn]:
    return {name: SharedColumn(**{**column, "shape": tuple(column["shape"])}) for name, column in columns.items()}


def _borrowed(payloads: Sequence[str] | None, tensors: Mapping[str, Array], name: str) -> Borrowed | None:
    return None if payloads is None else Borrowed(tuple(payloads), tensors[f"source/{name}"], tensors[f"at/{name}"])


@overload
def _widened(ids: Array) -> Ids: ...
@overload
def _widened(ids: None) -> None: ...
def _widened(ids: Array | None) -> Ids | None:
    return None if ids is None else ids.astype(np.int64, copy=False)


def bytes_each(graph: Graph, driver: str) -> float:
    """Return the average bytes of a chunk for each vertex of type `driver`: its row, and its part of the other local
    rows that f can reach. This is too low if chunks have neighbours in common, because each chunk carries them."""
    seen = reachable(graph.tables[driver].type.cls)
    tables = (t for t in graph.local if t.type.name == driver or t.type.name in seen)
    return sum(map(_nbytes, tables)) / max(1, graph.tables[driver].count)


def _nbytes(table: Table) -> int:
    """Return the bytes of all rows of a table in the encoding of chunks."""
    edges = 0
    for each in table.edges.values():
        ends = each.count * each.degree if each.offsets is None else len(each.targets) + each.count
        edges += _ID * ends + (0 if each.weight is None else each.weight.nbytes)
        edges += sum(column.nbytes + _ID * ends for column in each.fields.values())
    fields = sum(column.nbytes for name, column in table.columns.items() if name not in table.shared)
    return _ID * table.count + fields + sum(column.nbytes for column in table.ragged.values()) + edges


def cut(
    graph: Graph,
    driver: str,
    vertices: Ids,
    ends: Ids | None,
    components: Components | None,
    *,
    bsp: bool,
    held: Callable[[str, Ids], Borrowed | None] | None = None,
    drawn: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Chunk:
    """Cut the chunk of `vertices` (indices of type `driver`, in training order) out of the graph.

    With `bsp`, local neighbours are read-only rows in separate tables (`@before`). Otherwise the chunk has whole
    components, without the local types that cannot be reached by edges from the driving type. `held(type, ids)` returns
    the location of each row of a local type, or None if the chunk must carry all of them. `drawn` has, by replicated
    type, a mask (count,) of the vertices to which the chunk's edges lead; of other types, all do.
    """
    ids: dict[str, Ids] = {driver: vertices}
    if components is not None and not bsp:
        inside = np.unique(components.label[driver][vertices])
        seen = reachable(graph.tables[driver].type.cls)
        for table in graph.local:
            if table.type.name != driver and table.type.name in seen:
                ids[table.type.name] = _members(components, table.type.name, inside)
    sources = list(ids)
    raw: dict[str, tuple[str, Edges, Ids | None]] = {}  # by "table/edge field": (table they lead to, edges, places)
    wanted: dict[str, list[Ids]] = {}  # targets by table, for tables that are not among the sources
    for source in sources:
        table = graph.tables[source]
        for name, edges in table.edges.items():
            if edges.stays and len(vertices) < table.count:  # with all vertices, few active ones are walked from here
                continue
            vertex_type = describe(table.type.target(name))
            key = vertex_type.name if vertex_type.replicated or not bsp else vertex_type.name + BEFORE
            taken = edges.take(ids[source])
            if drawn is not None and vertex_type.name in drawn:
                taken = taken.only(drawn[vertex_type.name])
            places = edges.places(ids[source]) if table.type.mutable_of_edge(name) else None
            raw[f"{source}/{name}"] = key, taken, places
            if key not in ids:
                wanted.setdefault(key, []).append(taken.targets)
    for key, parts in wanted.items():
        ids[key] = ascending(*parts)
    tables = {key: _rows(graph.tables[key.removesuffix(BEFORE)], at, held) for key, at in ids.items()}
    edges_of = {
        name: ChunkEdges(key, positions(ids[key], of.targets), of.offsets, of.degree, of.weight, of.fields, places_of)
        for name, (key, of, places_of) in raw.items()
    }
    return Chunk(driver, tables, edges_of, ends)


def lasting_fields(table: Table) -> tuple[str, ...]:
    """Return the array fields of a table that chunks carry and f does not change."""
    return tuple(n for n in table.columns if n not in table.shared and n not in table.type.mutable)


def _rows(table: Table, ids: Ids, held: Callable[[str, Ids], Borrowed | None] | None) -> ChunkTable:
    if table.type.replicated:
        return ChunkTable(table.type.name, ids, {})
    lasting = lasting_fields(table)
    borrowed = held(table.type.name, ids) if held is not None and (lasting or table.ragged) else None
    own = ids if borrowed is None else ids[borrowed.own]
    fields = {
        name: np.asarray(column[own if name in lasting else ids])
        for name, column in table.columns.items()
        if name not in table.shared
    }
    ragged = {name: column.take(own) for name, column in table.ragged.items()}
    return ChunkTable(table.type.name, ids, fields, ragged, table.shared, lasting, borrowed)


def positions(ids: Ids, wanted: Ids) -> Ids:
    """Return the position of each of `wanted` in `ids`, which has all of them."""
    if len(ids) and ids[0] == 0 and ids[-1] == len(ids) - 1 and (np.diff(ids) == 1).all():
        return wanted  # all rows, each at its own position
    if is_dense(ids, len(ids) + len(wanted)):
        place = np.empty(ids.max() + 1, np.int64)
        place[ids] = np.arange(len(ids))
        return place[wanted]
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)].astype(np.int64)


def _members(components: Components, type_name: str, inside: Ids) -> Ids:
    """Return the vertices of a type whose component is in `inside` (sorted labels)."""
    units = components.units[type_name]
    if not len(units.members):
        return units.members
    labels = components.label[type_name][units.members[units.offsets[:-1]]]
    at = np.searchsorted(labels, inside)
    hits = at[(at < len(labels)) & (labels[np.minimum(at, len(labels) - 1)] == inside)]
    return np.concatenate([units.members[:0], *(units.members[units.offsets[u] : units.offsets[u + 1]] for u in hits)])
