"""The graph on the submit host: typed vertices as a struct of arrays, edges in CSR form, grouped by source.

Arrays are not copied: a `numpy.memmap` stays on disk, and only the rows of one chunk at a time are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.order import Units
from gridml.model.own_ids import OwnIds, joined_ids, own_ids, positions
from gridml.model.ragged import Ragged, array_digest, converted
from gridml.model.shared import SharedColumn, shared_column
from gridml.model.vertex import Vertex, VertexType, array, describe, edge
from gridml.protocol.foreign import described

Array = NDArray[Any]
# Edges that are gathered together. Their positions stay in the processor's cache, and take no memory to speak of: those
# of all edges of a chunk would take several times the memory of what is gathered.
EDGES_AT_ONCE = 1 << 16
_FACTORY = " A module is made by its factory; other values come from --init-from."
_DECLARE = ' Declare fields in the class, as in pixels = gridml.array("float32", (28, 28)).'


@dataclass(frozen=True)
class VertexSet:
    """Vertices `start`..`stop`-1 of one type, as `Graph.add` returned them."""

    type: type[Vertex]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, at: Any) -> NDArray[np.int64]:
        """Return the indices in the graph of some of the vertices, int64 (m,): targets for an edge field. `at` is a
        whole number, a slice, an array of positions (m,) or a boolean mask (len,). Raises IndexError for a position
        beyond the end."""
        return np.atleast_1d(np.arange(self.start, self.stop, dtype=np.int64)[at])


@dataclass(frozen=True)
class _Spans:
    """Where the edges of some rows are among all edges. An iteration yields parts of these edges, one after the other:
    (slice among the edges of the rows, positions among all edges int64 (m,))."""

    begins: NDArray[np.int64]  #: (rows,) the position of the first edge of each row
    offsets: NDArray[np.int64]  #: (rows+1,) borders of the rows among their edges

    @property
    def count(self) -> int:
        return int(self.offsets[-1])

    def __iter__(self) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        shift, lengths, first = self.begins - self.offsets[:-1], np.diff(self.offsets), 0
        while first < len(shift):
            stop = int(np.searchsorted(self.offsets, self.offsets[first] + EDGES_AT_ONCE, "right")) - 1
            rows = slice(first, max(stop, first + 1))
            span = slice(int(self.offsets[rows.start]), int(self.offsets[rows.stop]))
            at = np.repeat(shift[rows], lengths[rows])
            at += np.arange(span.start, span.stop)
            yield span, at
            first = rows.stop


@dataclass(frozen=True)
class Edges:
    """Edges of one edge field, grouped by source: vertex i has the targets `targets[offsets[i]:offsets[i+1]]`."""

    count: int  #: n, the number of sources
    targets: Array  #: integers (m,)
    offsets: Array | None = None  #: int64 (n+1,); None: every vertex has `degree` edges
    degree: int = 1
    constant: int | None = None  #: the target that all vertices share, such as the network; then `targets` is empty
    weight: Array | None = None  #: (m,)
    fields: Mapping[str, Array] = field(default_factory=dict)  #: (m, *shape) by further field
    symmetric: bool = False  #: each edge has one back, with equal weight and fields, and targets ascend
    stays: bool = False  #: stages walk them by their ends only, so chunks leave them out in this form

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of edges of each vertex, int64 (n,)."""
        if self.offsets is None:
            return np.full(self.count, self.degree, np.int64)
        return np.diff(self.offsets).astype(np.int64, copy=False)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the edges of `rows` among all edges, in order. Not for a `constant` target."""
        spans = self._spans(rows)
        found = np.empty(spans.count, np.int64)
        for span, at in spans:
            found[span] = at
        return found

    def _spans(self, rows: NDArray[np.int64]) -> _Spans:
        """Return where the edges of `rows` are among all edges."""
        if self.offsets is None:
            return _Spans(rows * self.degree, np.arange(len(rows) + 1) * self.degree)
        begins = self.offsets[rows]
        return _Spans(begins, np.concatenate([[0], np.cumsum(self.offsets[rows + 1] - begins)]).astype(np.int64))

    def of(self, rows: NDArray[np.int64]) -> tuple[Array | None, Array, Array | None]:
        """Return (offsets, targets, weight) of the edges of `rows`; offsets are None if all degrees are equal."""
        taken = self.take(rows, fields=False)
        return taken.offsets, taken.targets, taken.weight

    def take(self, rows: NDArray[np.int64], *, fields: bool = True) -> Edges:
        """Return the edges of `rows`, in that order. Their targets are int64. Without `fields`, they have none."""
        if self.constant is not None:
            return Edges(len(rows), np.full(len(rows), self.constant, np.int64))
        spans, further = self._spans(rows), self.fields if fields else {}
        columns = [self.targets, *([] if self.weight is None else [self.weight]), *further.values()]
        dtypes = [np.dtype(np.int64), *(column.dtype for column in columns[1:])]
        taken = [np.empty((spans.count, *c.shape[1:]), dtype) for c, dtype in zip(columns, dtypes, strict=True)]
        for span, at in spans:
            for column, into in zip(columns, taken, strict=True):
                into[span] = column[at]
        offsets, weight = None if self.offsets is None else spans.offsets, None if self.weight is None else taken[1]
        named = dict(zip(further, taken[len(taken) - len(further) :], strict=True))
        return Edges(len(rows), taken[0], offsets, self.degree, weight=weight, fields=named)

    def only(self, mask: NDArray[np.bool_]) -> Edges:
        """Return the edges that lead to vertices in the `mask` (vertices,) of the target type. Not for a `constant`
        target."""
        kept = mask[self.targets]
        borders = np.arange(self.count + 1) * self.degree if self.offsets is None else self.offsets
        offsets = np.concatenate([[0], np.cumsum(kept)])[borders]
        weight = None if self.weight is None else self.weight[kept]
        fields = {name: column[kept] for name, column in self.fields.items()}
        return Edges(self.count, self.targets[kept], offsets, self.degree, weight=weight, fields=fields)

    def digest(self) -> str:
        """Return a SHA-256 of the edges and of the form in which they are stored, in hexadecimal."""
        arrays = [array_digest(part) for part in (self.targets, self.offsets, self.weight) if part is not None]
        arrays += [f"{name} {array_digest(values)}" for name, values in sorted(self.fields.items())]
        form = [self.count, self.degree, self.constant, self.offsets is None, self.weight is None]
        return hashlib.sha256(f"{form} {arrays}".encode()).hexdigest()


def csr(offsets: Any, targets: Any, weight: Any = None, **fields: Any) -> Edges:
    """Make edges: vertex i has the targets `targets[offsets[i]:offsets[i+1]]`, with `weight` (m,) and further `fields`
    (m, *shape) in the same order, as in `topic=topic`. A number is that of all edges, and takes no memory for each.
    Targets are numbers of vertices, or texts: ids that the targets were added with.

    Raises ProgramError for offsets that do not start at 0, that decrease, or that do not end at len(targets).
    """
    offsets, targets = _array("the offsets of csr", offsets), _array("the targets of csr", targets)
    if targets.ndim == 1 and not len(targets):
        targets = targets.astype(np.int64)  # numpy makes an empty list float64
    if offsets.dtype.kind not in "iu" or targets.dtype.kind not in "iuU" or targets.ndim != 1:
        raise ProgramError(
            f"csr got {offsets.dtype} offsets and {targets.dtype} targets of shape {targets.shape}; expected integers, "
            f"the targets as one array (m,) of integers, or of texts that are ids of vertices."
        )
    offsets = np.asarray(offsets, np.int64)
    covers = offsets.ndim == 1 and len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(targets)
    if not covers or np.any(np.diff(offsets) < 0):
        raise ProgramError(
            f"csr got offsets that do not describe {len(targets)} targets; expected a non-decreasing array "
            f"from 0 to {len(targets)}, one longer than the number of vertices."
        )
    weight = np.broadcast_to(weight, len(targets)) if _is_number(weight) else weight
    weight = None if weight is None else _array("the weights of csr", weight)
    if weight is not None and weight.shape != targets.shape:
        raise ProgramError(
            f"csr got weights of shape {weight.shape} for {len(targets):,} targets; give one number for each edge."
        )
    fields = {name: np.broadcast_to(each, len(targets)) if _is_number(each) else each for name, each in fields.items()}
    columns = {name: _array(f"the field {name} of csr", values) for name, values in fields.items()}
    wrong = next((name for name, column in columns.items() if column.shape[:1] != targets.shape), None)
    if wrong is not None:
        raise ProgramError(
            f"csr got {wrong} of shape {columns[wrong].shape} for {len(targets):,} targets; give one for each edge."
        )
    return Edges(len(offsets) - 1, targets, offsets, weight=weight, fields=columns)


@dataclass
class Table:
    """All vertices of one type."""

    type: VertexType
    count: int = 0
    columns: dict[str, Array] = field(default_factory=dict)  #: (count, *shape) by array field
    edges: dict[str, Edges] = field(default_factory=dict)
    ragged: dict[str, Ragged] = field(default_factory=dict)
    shared: dict[str, SharedColumn] = field(default_factory=dict)  #: the columns that workers read from a file
    ids: OwnIds | None = None  #: the user's own ids (count,); None: vertices are known by their numbers


def turned(name: str) -> str:
    """Return the name of the edge field that has the edges of another by their ends. It is no identifier, so that no
    declared field can have it."""
    return f"@turned {name}"


class Graph:
    """Typed vertices and edges. Build it with `add`; gridml calls `check` before a run starts."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def add(self, cls: type[Vertex], count: int | None = None, /, *, ids: Any = None, **values: Any) -> VertexSet:
        """Add vertices of `cls`: one array (count, *shape) per array field, and targets per edge field.

        A field of differing length takes a list with an array for each vertex, or a `Ragged`. A string field takes a
        list of str.

        A number is that of all vertices, in every element. An accumulator may be left out: it begins as 0.

        The targets of an edge field are an int array (count,) or (count, k), `csr(...)`, or a VertexSet. If the set has
        one vertex, all edges lead to it; if it has `count` vertices, vertex i has an edge to the set's i-th vertex. If
        the target type was added with texts as ids, an array of such texts takes the place of the int array.

        `ids` (count,) are the user's own ids of the vertices, whole numbers or texts, all different. A run keeps them,
        and `gridml.load` returns them.

        `count` is by default the length of the first array. For a type without arrays it is the number of vertices in
        the first edge field that determines one, otherwise 1. Adding vertices to a type again copies its arrays. Raises
        ProgramError for unknown, missing or unequally long fields.
        """
        if not (isinstance(cls, type) and issubclass(cls, Vertex) and cls is not Vertex):
            raise ProgramError(f"graph.add got {cls!r}; expected a vertex type, a subclass of gridml.Vertex.")
        vertex_type = describe(cls)
        table = self.tables.setdefault(vertex_type.name, Table(vertex_type))
        if table.type.cls is not cls:
            raise ProgramError(f"two vertex types are called {vertex_type.name}; give one of them another name.")
        if count is not None and (not isinstance(count, int | np.integer) or count < 0):
            got = count if isinstance(count, int | float | np.number) else type(count).__name__
            raise ProgramError(
                f"graph.add({vertex_type.name}, ...) got count={got}; expected a whole number, 0 or more. Fields are "
                f"given by name, as in **a_dict, or **gridml.from_torch(dataset, {vertex_type.name})."
            )
        declared = {*vertex_type.arrays, *vertex_type.ragged, *vertex_type.edges}
        values = dict.fromkeys(vertex_type.accumulators, 0) | values
        unknown, missing = sorted(set(values) - declared), sorted(declared - set(values))
        if unknown or missing:
            wrong = [f"got unknown fields {unknown}"] * bool(unknown) + [f"misses {missing}"] * bool(missing)
            hint = f" Give the count without a name: graph.add({vertex_type.name}, n, ...)." * ("count" in unknown)
            hint += _FACTORY * bool({*unknown} & {*vertex_type.modules})
            edges_to = {name: vertex_type.target(name).__name__ for name in missing if name in vertex_type.edges}
            hint += "".join(f" Write {name}=graph.add({target})." for name, target in edges_to.items())
            hint += _DECLARE * (not missing and not hint)
            raise ProgramError(
                f"graph.add({vertex_type.name}, ...) {' and '.join(wrong)}; it declares arrays "
                f"{[*vertex_type.arrays, *vertex_type.ragged]} and edges {list(vertex_type.edges)}.{hint}"
            )
        alike = {name: values[name] for name in vertex_type.arrays if _is_number(values[name])}
        arrays = {name: each for name, each in vertex_type.arrays.items() if name not in alike}
        columns = {name: _column(vertex_type.name, each, values[name]) for name, each in arrays.items()}
        ragged = {name: each.column(vertex_type.name, values[name]) for name, each in vertex_type.ragged.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        lengths |= {name: len(column) for name, column in ragged.items()}
        own = None if ids is None else own_ids(vertex_type.name, _array(f"the ids of {vertex_type.name}", ids))
        if own is not None:
            lengths["ids"] = len(own)
        if count is not None:
            lengths["count"] = int(count)
        if len(set(lengths.values())) > 1:
            by_field = ", ".join(f"{name}: {n:,}" for name, n in lengths.items())
            raise ProgramError(
                f"arrays of unequal length for {vertex_type.name}: {by_field}. Every field needs one entry for each "
                f"vertex."
            )
        if not lengths:
            counts = (_sources(values[name]) for name in vertex_type.edges)
            lengths["edges"] = next((n for n in counts if n is not None), 1)
        added = next(iter(lengths.values()))
        for name, number in alike.items():
            each = vertex_type.arrays[name]
            one = converted(f"{vertex_type.name}.{name}", _number_in(number, each.dtype), each.dtype)
            columns[name] = np.broadcast_to(one, (added, *each.shape)).copy()
        edges = {
            name: _edges(vertex_type, name, self._named(vertex_type, name, values[name]), added)
            for name in vertex_type.edges
        }
        shared = [name for name, each in vertex_type.arrays.items() if each.shared]
        if table.count and shared:
            raise ProgramError(
                f"{vertex_type.name}.{shared[0]} is shared=True and was added a second time; give all vertices at "
                f"once, in one file."
            )
        if table.count:
            columns = {name: np.concatenate([table.columns[name], column]) for name, column in columns.items()}
            edges = {name: _join(table.edges[name], e) for name, e in edges.items()}
            ragged = {name: table.ragged[name].then(column) for name, column in ragged.items()}
            own = joined_ids(vertex_type.name, table.ids, own)
        table.ids = own
        table.columns, table.edges, table.ragged = columns, edges, ragged
        table.shared = {name: shared_column(f"{vertex_type.name}.{name}", columns[name]) for name in shared}
        table.count += added
        return VertexSet(cls, table.count - added, table.count)

    def _named(self, vertex_type: VertexType, name: str, value: Any) -> Any:
        """Return the targets of an edge field by their numbers, if they are given by their own ids."""
        field = f"{vertex_type.name}.{name}"
        targets = value.targets if isinstance(value, Edges) else None if isinstance(value, VertexSet) else value
        if targets is None or (values := _array(field, targets)).dtype.kind != "U":
            return value
        target = describe(vertex_type.target(name)).name
        table = self.tables.get(target)
        found = positions(field, target, None if table is None else table.ids, values.reshape(-1))
        return replace(value, targets=found) if isinstance(value, Edges) else found.reshape(values.shape)

    def reach(self, source: str, context: VertexType) -> None:
        """Give every `source` vertex an edge to the one vertex of `context`, for stages: chunks then have it, and
        replies bring its values. Its name is no identifier, so that no declared field can have it. Idempotent."""
        table, name = self.tables[source], f"@{context.name}"
        table.type = replace(table.type, edges={**table.type.edges, name: edge(context.cls)})
        table.edges[name] = Edges(table.count, np.empty(0, np.int64), constant=0)

    def turn(self, source: str, name: str) -> None:
        """Give every `source` vertex the edges of a field by their ends, which are `source` vertices too: edges to the
        vertices from which they come, in ascending order. Idempotent."""
        from gridml.model.transposed import by_ends  # deferred, because numba takes a quarter of a second

        table = self.tables[source]
        edges, declared = replace(table.edges[name], stays=False), table.type.edges[name]
        changing = table.type.mutable_of_edge(name)  # left out, as nothing reads them from the ends
        if not edges.symmetric or changing:
            if edges.constant is not None:  # all lead to one vertex
                edges = replace(edges, targets=np.full(edges.count, edges.constant), constant=None)
            offsets = np.concatenate([[0], np.cumsum(edges.lengths)])
            fixed = {each: values for each, values in edges.fields.items() if each not in changing}
            given = {**({} if edges.weight is None else {"": edges.weight}), **fixed}
            begins, sources, fields = by_ends(offsets, edges.targets, table.count, given)
            edges = Edges(table.count, sources, begins, weight=fields.pop("", None), fields=fields)
        table.type = replace(table.type, edges={**table.type.edges, turned(name): declared})
        table.edges[turned(name)] = edges

    def check(self) -> None:
        """Raise ProgramError when an edge leads to a vertex that was never added."""
        for table in self.tables.values():
            for name, edges in table.edges.items():
                target = describe(table.type.target(name)).name
                if target not in self.tables:
                    raise ProgramError(
                        f"{table.type.name}.{name} leads to {target}, but no {target} vertices were added. "
                        f"Add them with graph.add({target}, ...)."
                    )
                count = self.tables[target].count
                ends = np.asarray([edges.constant]) if edges.constant is not None else edges.targets
                if not len(ends):
                    continue
                low, high = int(ends.min()), int(ends.max())
                if low < 0 or high >= count:
                    bad = low if low < 0 else high
                    numbers = f" (0 to {count - 1})" if count else ""
                    raise ProgramError(
                        f"{table.type.name}.{name} has an edge to {target} {bad}, but there are {count:,} {target} "
                        f"vertices{numbers}. Add the missing vertices or correct the targets."
                    )

    @property
    def replicated(self) -> list[Table]:
        return [t for t in self.tables.values() if t.type.replicated]

    @property
    def local(self) -> list[Table]:
        return [t for t in self.tables.values() if not t.type.replicated]

    def mutable_columns(self) -> dict[str, Array]:
        """Return the columns of local vertices, and of their edges, that f or stages may change, by "OWNER.field": the
        owner is a type, or "Type:edge"."""
        fields = {f"{t.type.name}.{name}": t.columns[name] for t in self.local for name in t.type.mutable}
        return fields | {
            f"{t.type.name}:{name}.{each}": t.edges[name].fields[each]
            for t in self.local
            for name in t.edges
            for each in t.type.mutable_of_edge(name)
        }

    def replace_column(self, field: str, column: Array) -> None:
        """Put a column in place of one of `mutable_columns`."""
        owner, name = field.split(".")
        type_name, _, edge_name = owner.partition(":")
        table = self.tables[type_name]
        if edge_name:
            edges = table.edges[edge_name]
            table.edges[edge_name] = replace(edges, fields={**edges.fields, name: column})
        else:
            table.columns[name] = column

    def fingerprint(self) -> dict[str, Any]:
        """Return the properties that must not change for a run to resume with this graph: types, counts, dtypes, shapes
        and mutable fields."""
        return {
            name: {
                "count": t.count,
                "fields": {n: [a.dtype.str, list(a.shape), a.mutable] for n, a in t.type.arrays.items()}
                | {n: [r.dtype.str, list(r.shape), "text" if r.text else "ragged"] for n, r in t.type.ragged.items()},
                "modules": sorted(t.type.modules),
                **{
                    f"edges {name}": {n: [a.dtype.str, list(a.shape), a.mutable] for n, a in declared.fields.items()}
                    for name, declared in sorted(t.type.edges.items())
                    if declared.fields
                },
            }
            for name, t in sorted(self.tables.items())
        }

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every field and edge field, by "Type.field". Reads all data once."""
        of_fields = {f"{t.type.name}.{n}": array_digest(c) for t in self.tables.values() for n, c in t.columns.items()}
        of_edges = {f"{t.type.name}.{n}": edges.digest() for t in self.tables.values() for n, edges in t.edges.items()}
        of_ragged = {f"{t.type.name}.{n}": c.digest() for t in self.tables.values() for n, c in t.ragged.items()}
        of_ids = {f"{t.type.name}.ids": array_digest(t.ids) for t in self.tables.values() if t.ids is not None}
        return dict(sorted({**of_fields, **of_ragged, **of_edges, **of_ids}.items()))


def _array(name: str, value: Any) -> Array:
    """Convert a user's value to an array. Raises ProgramError if that fails, and for a masked array, whose mask would
    be lost."""
    try:
        values: Array = np.asanyarray(value)
    except Exception as error:  # a user's object may raise anything, such as a tensor that requires a gradient
        raise ProgramError(f"{name} got {type(value).__name__}, expected an array: {described(error)}") from error
    if isinstance(values, np.ma.MaskedArray):
        raise ProgramError(f"{name} got a masked array, whose mask would be lost. Give its values: filled(...).")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.bool_ | np.number)


def _number_in(number: Any, dtype: np.dtype[Any]) -> Array:
    """Return a number as an array (1,): a Python number in the kind of `dtype`, as 0 is for a float."""
    plain = isinstance(number, int) and dtype.kind == "f"
    return np.asarray([float(number) if plain else number])


def _column(type_name: str, declared: array, value: Any) -> Array:
    column = _array(f"{type_name}.{declared.name}", value)
    if column.shape[1:] != declared.shape or column.ndim == 0:
        got = f"an array of shape {column.shape}" if column.ndim else f"{type(value).__name__}, which is no array"
        wanted = ", ".join(["count", *map(str, declared.shape)]) + ("" if declared.shape else ",")
        one = " For a single vertex give it as values[None]." if column.shape == declared.shape else ""
        other = f'declare the shape of one vertex\'s value, gridml.array("{declared.dtype}", {column.shape[1:]})'
        other = other if column.ndim else f"from a data set, write **gridml.from_torch(dataset, {type_name})"
        raise ProgramError(f"{type_name}.{declared.name} got {got}; expected ({wanted}) as declared; or {other}.{one}")
    if column.dtype != declared.dtype:
        column = converted(f"{type_name}.{declared.name}", column, declared.dtype)
    return column


def _sources(value: Any) -> int | None:
    """Return the number of sources of the edges `value`, which is in any form that `add` takes. Return None for a
    VertexSet of one vertex, because any number of sources can have it as their target."""
    if isinstance(value, VertexSet) and len(value) == 1:
        return None
    return value.count if isinstance(value, Edges) else len(value)


def _edges(vertex_type: VertexType, name: str, value: Any, count: int) -> Edges:
    """Return the edges of one field from any form that `add` takes."""
    declared = vertex_type.edges[name]
    if isinstance(value, VertexSet):
        if value.type is not vertex_type.target(name):
            raise ProgramError(
                f"{vertex_type.name}.{name} leads to {vertex_type.target(name).__name__}, but got "
                f"{value.type.__name__} vertices."
            )
        if len(value) == 1:
            edges = Edges(count, np.empty(0, np.int64), constant=value.start)
        else:
            edges = Edges(len(value), np.arange(value.start, value.stop, dtype=np.int64))
    elif isinstance(value, Edges):
        edges = value
    else:
        targets = _array(f"{vertex_type.name}.{name}", value)
        if targets.ndim not in (1, 2) or targets.dtype.kind not in "iu":
            raise ProgramError(
                f"{vertex_type.name}.{name} got {targets.dtype} targets of shape {targets.shape}; expected integers "
                f"of shape (count,) or (count, k), what graph.add({vertex_type.target(name).__name__}) returned, or "
                f"gridml.csr(...)."
            )
        edges = Edges(len(targets), targets.reshape(-1), degree=1 if targets.ndim == 1 else targets.shape[1])
    if edges.count != count:
        raise ProgramError(
            f"arrays of unequal length for {vertex_type.name}: {name} has edges of {edges.count:,} vertices, the other "
            f"fields {count:,}."
        )
    if (declared.weight is None) != (edges.weight is None):
        each = f"a {declared.weight} weight on every edge (gridml.csr(..., weight))"
        wanted = "no weight" if declared.weight is None else each
        got = "edges without weights" if edges.weight is None else "edges with weights"
        raise ProgramError(f"{vertex_type.name}.{name} is declared with {wanted}, and got {got}.")
    if edges.weight is not None and declared.weight is not None and edges.weight.dtype != declared.weight:
        weight = converted(f"the weight of {vertex_type.name}.{name}", edges.weight, declared.weight)
        edges = replace(edges, weight=weight)
    if declared.fields or edges.fields:
        edges = replace(edges, fields=_edge_fields(f"{vertex_type.name}.{name}", declared, edges))
    return edges


def _edge_fields(name: str, declared: edge, edges: Edges) -> dict[str, Array]:
    """Return the declared fields of edges. Raises ProgramError for missing, unknown or wrong ones."""
    if declared.fields.keys() != edges.fields.keys():
        given = ", ".join(f"{each}=..." for each in declared.fields)
        raise ProgramError(
            f"{name} is declared with the fields {list(declared.fields)}, and got {list(edges.fields)}; give them as "
            f"in gridml.csr(offsets, targets{f', {given}' if given else ''})."
        )
    columns = {}
    for each, values in edges.fields.items():
        of = declared.fields[each]
        if values.shape[1:] != of.shape:
            raise ProgramError(f"{name}.{each} got values of shape {values.shape[1:]}; declared is {of.shape}.")
        columns[each] = converted(f"{name}.{each}", values, of.dtype)
    return columns


def _join(first: Edges, second: Edges) -> Edges:
    """Concatenate the edges of two `add` calls."""
    if first.constant is not None and first.constant == second.constant:
        return Edges(first.count + second.count, first.targets, constant=first.constant)
    count = first.count + second.count
    # Edges without offsets have no weights, so none are lost here.
    if first.offsets is None and second.offsets is None and first.degree == second.degree:
        ends = [e.of(np.arange(e.count, dtype=np.int64))[1] for e in (first, second)]
        return Edges(count, np.concatenate(ends), degree=first.degree)
    parts = []
    for e in (first, second):
        offsets, targets, weight = e.of(np.arange(e.count, dtype=np.int64))
        if offsets is None:
            offsets = np.arange(e.count + 1, dtype=np.int64) * e.degree
        parts.append((offsets, targets, weight))
    (o1, t1, w1), (o2, t2, w2) = parts
    weight = None if w1 is None or w2 is None else np.concatenate([w1, w2])
    fields = {name: np.concatenate([values, second.fields[name]]) for name, values in first.fields.items()}
    joined = np.concatenate([t1, t2]), np.concatenate([o1, o2[1:] + o1[-1]])
    return Edges(count, *joined, weight=weight, fields=fields)


@dataclass(frozen=True)
class Components:
    """Connected components of local vertices. Replicated vertices connect nothing (section 2.3 of the paper)."""

    label: Mapping[str, NDArray[np.int64]]  #: by type: the component number of each vertex, int64 (count,)
    units: Mapping[str, Units]  #: by type: the vertices, grouped by component


def components(graph: Graph) -> Components | None:
    """Return the components over all local types. Return None if each local vertex is a component, because no edge
    joins two local vertices."""
    from scipy.sparse import coo_matrix  # deferred, because only this function needs scipy
    from scipy.sparse.csgraph import connected_components

    tables = graph.local
    base = dict(zip([t.type.name for t in tables], np.cumsum([0, *[t.count for t in tables]]), strict=False))
    sources, targets = [], []
    for table in tables:
        for name, edges in table.edges.items():
            vertex_type = describe(table.type.target(name))
            if vertex_type.replicated:
                continue
            offsets, ends, _ = edges.of(np.arange(table.count, dtype=np.int64))
            degrees = np.full(table.count, edges.degree) if offsets is None else np.diff(offsets)
            sources.append(np.repeat(np.arange(table.count), degrees) + base[table.type.name])
            targets.append(ends + base[vertex_type.name])
    if not sources:
        return None
    total = sum(t.count for t in tables)
    s, t = np.concatenate(sources), np.concatenate(targets)
    _, labels = connected_components(
        coo_matrix((np.ones(len(s), np.int8), (s, t)), shape=(total, total)), directed=False
    )
    label, units = {}, {}
    for table in tables:
        mine = labels[base[table.type.name] : base[table.type.name] + table.count].astype(np.int64)
        members = np.argsort(mine, kind="stable")
        cuts = np.flatnonzero(np.diff(mine[members])) + 1
        label[table.type.name] = mine
        units[table.type.name] = Units(np.concatenate([[0], cuts, [table.count]]).astype(np.int64), members)
    return Components(label, units)
