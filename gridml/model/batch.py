"""The objects that f, the user's update function, gets: a batch of vertices, its neighbours, and single vertices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates.base import same_bits
from gridml.errors import ProgramError
from gridml.model.chunk import ChunkEdges
from gridml.model.ragged import Lists, Ragged
from gridml.model.shared import SharedColumn
from gridml.model.stepping import Stepping
from gridml.model.vertex import Vertex, VertexId, VertexType
from gridml.protocol.payload import aligned_copy, aligned_rows, aligned_tensor, is_aligned

V = TypeVar("V", bound=Vertex)
Array = NDArray[Any]
Ids = NDArray[np.int64]


@dataclass(eq=False, repr=False)
class Rows:
    """Rows of one vertex type in memory, and the `VertexStore` of the vertices in these rows.

    Fields outside `changed` are read-only arrays. Torch has no read-only tensors, so f can write into the tensor of
    such a field unnoticed. `dirty` bool (n,) marks rows that f may have written.
    """

    vertex_type: VertexType
    ids: Ids  #: indices in the graph, int64 (n,)
    fields: Mapping[str, Array]  #: values by field, each (n, *shape)
    changed: frozenset[str]  #: the fields that f may write
    _: KW_ONLY
    torch: bool  #: True: f reads torch tensors; False: numpy arrays
    before: bool = False  #: True: read-only neighbours, as they were when the superstep began
    #: True: tensors are aligned like those that torch allocates (`gridml.protocol.payload`). Unaligned rows are copied,
    #: and f's changes to a copy are written back when f returns. False in evaluate, to read columns without a copy.
    aligned: bool = True
    device: str | None = None  #: the device that f reads the rows on; None: host memory
    edges: dict[str, ChunkEdges] = field(default_factory=dict)  #: edges by edge field; filled by the engine
    stores: dict[str, Any] = field(default_factory=dict)  #: neighbours by table; filled by the engine
    ragged: Mapping[str, Ragged] = field(default_factory=dict)
    shared: Mapping[str, SharedColumn] = field(default_factory=dict)
    followed: set[str] = field(default_factory=set)  #: edge fields whose targets f has read
    #: Edge fields whose weights f has written. None except in a trial of the program, because finding them is slow.
    reweighted: set[str] | None = None
    #: Copies of single values, given to f: (tensor, original value) by (field, row). Emptied when f returns.
    _lent: dict[tuple[str, int], tuple[Any, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        free = self.fields if self.torch else self.changed
        self.fields = {name: v if name in free else _read_only(v) for name, v in self.fields.items()}
        self.dirty = np.zeros(len(self.ids), np.bool_)
        self.aligns = self.torch and self.aligned

    def present(self, values: Array) -> Any:
        """Return an array in the form that f gets: a tensor in programs with torch, which shares the array's memory if
        that is writable and aligned."""
        if not self.torch:
            return values
        import torch

        fits = values.flags.writeable and (not self.aligns or is_aligned(values))
        return torch.from_numpy(values if fits else aligned_copy(values))

    def column(self, name: str, until: int | None = None) -> Any:
        """Return a field in the form that f gets. On a device, only rows before `until` (default: all) are valid."""
        return self.present(self.fields[name])

    def write_back_copies(self) -> None:
        """Write f's changes to copies of single values back to the rows."""
        lent, self._lent = self._lent, {}
        for (name, at), (tensor, original) in lent.items():
            if name in self.changed and (values := to_host(tensor)).tobytes() != original.tobytes():
                self.fields[name][at] = values
                self.dirty[at] = True

    def drop_copies(self) -> None:
        """Discard the copies of single values after f has failed. Nothing is written back."""
        self._lent.clear()

    def check_writable(self, name: str) -> None:
        if name in self.changed:
            return
        if name in self.ragged:
            raise ProgramError(
                f"{self.vertex_type.name}.{name} was written; a field of differing length is not changed by f."
            )
        if name not in self.fields and name not in self.shared:
            raise ProgramError(
                f"{self.vertex_type.name}.{name} was written; it is not an array field. {self.vertex_type.name} has "
                f"{list(self.fields)}."
            )
        if self.before:
            raise ProgramError(
                f"f wrote {self.vertex_type.name}.{name} of a neighbour. In a program without replicated types, f "
                f"sees neighbours as they were when the superstep began, and changes only the vertices it runs on."
            )
        raise ProgramError(
            f"{self.vertex_type.name}.{name} was written, which is read-only here. f may write it where it is declared "
            f"gridml.array(..., mutable=True), or in a type that all workers share, by an aggregate such as "
            f"gridml.add(); evaluate writes nothing. Put a new value into a variable: x = images.pixels / 255."
        )

    def identify(self, at: int) -> VertexId:
        return VertexId(self.vertex_type.name, int(self.ids[at]))

    def read(self, name: str, at: int) -> Any:
        if name in self.ragged:
            value = self.ragged[name].one(at)
        elif name in self.shared:
            value = self.shared[name].take(self.ids[at])
            value = value if value.ndim else value[()]
        else:
            value = self.fields[name][at]
            if self.aligns and isinstance(value, np.ndarray):
                return self._lend(name, at, value)
        if isinstance(value, str):
            return value
        return self.present(value) if isinstance(value, np.ndarray) else value.item()

    def write(self, name: str, at: int, value: Any) -> None:
        self.check_writable(name)
        column = self.fields[name]
        try:
            column[at] = value
        except ValueError as error:
            raise ProgramError(
                f"{self.vertex_type.name}.{name} got {type(value).__name__} of shape {np.shape(value)}; declared is "
                f"{column.dtype} of shape {column.shape[1:]}, and a field keeps its shape. {error}."
            ) from error
        self.dirty[at] = True
        if (name, at) in self._lent:
            tensor, now = self._lent[name, at][0], self.fields[name][at]
            tensor.detach().copy_(self.present(now))  # f may hold the tensor of an earlier read
            self._lent[name, at] = tensor, now.copy()

    def _lend(self, name: str, at: int, value: Array) -> Any:
        """Return a vertex's value as a tensor: a view if possible, else a copy. Until f returns, each read of the value
        gets the same copy."""
        if self.device is None and value.flags.writeable and is_aligned(value):
            return self.present(value)
        if (name, at) not in self._lent:
            self._lent[name, at] = self.present(value), value.copy() if name in self.changed else value
        return self._lent[name, at][0]

    def neighbours(self, name: str, at: int) -> list[Vertex]:
        edges = self._edges(name)
        store = self.stores[edges.target]
        return [store.vertex_type.cls._view(store, int(i)) for i in edges.index[edges.span(at, at + 1)]]

    def weights(self, name: str, at: int) -> list[Any]:
        edges = self._edges(name)
        span = edges.span(at, at + 1)
        return [None] * (span.stop - span.start) if edges.weight is None else edges.weight[span].tolist()

    def _edges(self, name: str) -> ChunkEdges:
        if name not in self.edges:
            raise ProgramError(
                f"the edges {self.vertex_type.name}.{name} of this vertex are not here. f sees the edges of the "
                f"vertices it runs on and of their neighbours; in a superstep, f sees only those of the vertices it "
                f"runs on. g sees no edges."
            )
        return self.edges[name]

    def optimisers(self, at: int) -> dict[str, Any]:
        return {}

    @property
    def stepping(self) -> Stepping:
        raise ProgramError(f"{self.vertex_type.name} has no module, so it cannot be stepped.")


def to_host(value: Any) -> Any:
    """Return a tensor as an array on the host, and anything else unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _read_only(values: Array) -> Array:
    seen = values.view()
    seen.flags.writeable = False
    return seen


class Neighbours:
    """The edges of a batch along one field.

    f receives the distinct neighbours as another batch. Edge j leads to position `index[j]` in that batch; `index` is
    int64 (m,). Vertex i has the edges `offsets[i]` to `offsets[i+1]` - 1; `offsets` is int64 (n+1,). `weight` is (m,),
    or None. In evaluate `index` has the numbers of the neighbours in the graph, which are positions in a Batch of all.
    """

    def __init__(self, index: Any, offsets: Any, weight: Any, original: Array | None = None) -> None:
        self.index = index
        self.offsets = offsets
        self.weight = weight
        self._given = weight
        self._original = original  # a copy of the weights from before f ran; None outside a trial

    def has_new_weights(self) -> bool:
        """Return True if f has assigned other weights or has written into these."""
        if self.weight is not self._given:
            return True
        return self._original is not None and not same_bits(to_host(self.weight), self._original)


class Batch(Generic[V]):
    """Several vertices of one type, one array per field: `images.pixels` has shape (len(images), 1, 28, 28).

    In programs with a module a field reads as a tensor, aligned like those that torch allocates; otherwise as a numpy
    array. The tensor or array of consecutive rows is a view if possible. f can assign a mutable field or write into its
    array: the vertices change when f returns. An edge field reads as `Neighbours`.

    If two arguments of f contain the same vertex (a team that plays at home and away), f's changes to both are added.
    """

    _rows: Rows
    _at: slice | Ids  #: positions in `_rows`
    #: By field: (the copy that f gets, its values before f's writes). For a read-only field both are the same array.
    _copies: dict[str, tuple[Array, Array]]
    _lent: dict[str, Any]  #: by field: the tensor on a device that f gets; `_copies` has its values before f's writes
    _links: Mapping[str, Neighbours]  #: edges by edge field

    @classmethod
    def _over(cls, rows: Rows, at: slice | Ids, links: Mapping[str, Neighbours] | None = None) -> Batch[V]:
        batch: Batch[V] = object.__new__(cls)
        batch.__dict__.update(_rows=rows, _at=at, _copies={}, _lent={}, _links=links or {})  # bypasses __setattr__
        return batch

    @property
    def ids(self) -> Ids:
        """Indices of the vertices in the graph, int64 (n,)."""
        return self._rows.ids[self._at]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[V]:
        positions = np.arange(len(self._rows.ids))[self._at]
        return (self._rows.vertex_type.cls._view(self._rows, int(i)) for i in positions)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._links:
            self._rows.followed.add(name)
            return self._links[name]
        if name in self._rows.ragged:
            return self._lists(self._rows.ragged[name].take(self._at))
        if name in self._rows.shared:
            return self._rows.present(self._shared(name))
        if name not in self._rows.fields:
            vertex_type = self._rows.vertex_type
            raise AttributeError(
                f"{vertex_type.name} has no field {name!r} here; it has "
                f"{[*self._rows.fields, *self._rows.ragged, *self._rows.shared]} and edges {list(self._links)}. The "
                f"one vertex that an edge leads to is an argument of f; properties belong to one vertex, not to a batch"
            )
        return self._rows.present(self._values(name)) if self._rows.device is None else self._on_device(name)

    def _shared(self, name: str) -> Array:
        """Read the batch's rows of a shared field from its file. They are read only now, because the rows of a whole
        chunk can exceed the memory."""
        if name not in self._copies:
            values = self._rows.shared[name].take(self._rows.ids[self._at])
            values = values if self._rows.torch else _read_only(values)
            self._copies[name] = values, values
        return self._copies[name][0]

    def _lists(self, part: Ragged) -> Any:
        if part.text:
            return [part.one(at) for at in range(len(part))]
        return Lists(self._rows.present(_read_only(part.values)), self._rows.present(part.offsets))

    def __setattr__(self, name: str, value: Any) -> None:
        self._rows.check_writable(name)
        if self._rows.device is None:
            self._values(name)[...] = value
        else:
            tensor = self._on_device(name)
            tensor[...] = self._rows.present(value) if isinstance(value, np.ndarray) else value

    def _on_device(self, name: str) -> Any:
        """Return the batch's rows of a field as a tensor on the device: a view of the column, or, if f may change the
        field, a copy that is written back."""
        if name not in self._lent:
            if name not in self._rows.changed:
                rows: Any = self._at if isinstance(self._at, slice) else self._rows.present(self._at)
                until = self._at.stop if isinstance(self._at, slice) else None
                self._lent[name] = aligned_tensor(self._rows.column(name, until)[rows])
            else:
                self._rows.write_back_copies()  # the copy must include what f has written to single rows
                values = self._rows.fields[name][self._at].copy()
                self._copies[name] = values, values.copy()
                self._lent[name] = self._rows.present(values)
        return self._lent[name]

    def _values(self, name: str) -> Array:
        """Return the batch's rows of a field: a view of a slice if the alignment allows, else a copy. `_write_back`
        writes f's changes to the copy back to the rows."""
        if name not in self._copies:
            changed = name in self._rows.changed
            if changed:
                self._rows.write_back_copies()  # f may have written into single rows
            column = self._rows.fields[name]
            if isinstance(self._at, slice):
                view = column[self._at]
                if not self._rows.aligns or (is_aligned(view) and not changed):
                    return view
                values = aligned_copy(view)
            else:
                values = aligned_rows(column, self._at) if self._rows.aligns else column[self._at]
            if changed:
                self._copies[name] = values, values.copy()
            else:
                values = values if self._rows.torch else _read_only(values)
                self._copies[name] = values, values
        return self._copies[name][0]

    def _write_back(self) -> None:
        """Write changed rows back. If another argument of f has changed a row, too, both changes are added."""
        if self._rows.reweighted is not None:
            self._rows.reweighted.update(name for name, link in self._links.items() if link.has_new_weights())
            for name, (values, original) in self._copies.items():
                column = self._rows.fields.get(name)
                if values is original and column is not None and column.flags.writeable:
                    column[self._at] = values  # so that the trial finds f's writes to read-only fields
        if all(values is original for values, original in self._copies.values()):
            return  # f wrote nothing, or only through views
        positions = np.arange(len(self._rows.ids))[self._at]
        for name, (values, original) in self._copies.items():
            if values is original:
                continue
            if name in self._lent:
                values = self._lent[name].detach().cpu().numpy()
            column = self._rows.fields[name]
            moved = np.flatnonzero(_differ(values, original))
            at = positions[moved]
            values, original, now = values[moved], original[moved], column[at]
            twice = _differ(now, original)
            if twice.any() and values.dtype.kind != "b":
                values[twice] = now[twice] + (values[twice] - original[twice])
            column[at] = values


def _differ(left: Array, right: Array) -> NDArray[np.bool_]:
    """Return which rows differ in any bit, bool (n,)."""
    if not left.size:
        return np.zeros(len(left), np.bool_)
    both = [np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1) for a in (left, right)]
    differing: NDArray[np.bool_] = (both[0] != both[1]).any(axis=1)
    return differing
