"""What f sees of a chunk: a batch of vertices, its neighbours, and one vertex at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gridml.chunk import ChunkEdges
from gridml.errors import ProgramError
from gridml.vertex import Vertex, VertexId, VertexType

V = TypeVar("V", bound=Vertex)
Array = NDArray[Any]
Ids = NDArray[np.int64]


class Rows:
    """Rows of one type in memory, `fields[name]` (n, *shape); the home of its vertices.

    `changed` are the fields f may write. `edges` and `homes` are set by the engine once all tables of a chunk exist.
    """

    def __init__(
        self, kind: VertexType, ids: Ids, fields: dict[str, Array], changed: frozenset[str], *, torch: bool
    ) -> None:
        self.kind = kind
        self.ids = ids
        self.fields = fields
        self.changed = changed
        self.torch = torch
        self.edges: dict[str, ChunkEdges] = {}
        self.homes: dict[str, Any] = {}

    def present(self, values: Array) -> Any:
        """An array as f sees it: a tensor on the same memory when the program uses torch."""
        if not self.torch:
            return values
        import torch

        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def check_writable(self, name: str) -> None:
        if name not in self.changed:
            raise ProgramError(
                f"f wrote {self.kind.name}.{name}, which is read-only here. Declare it gridml.array(..., mutable=True)."
            )

    def identify(self, at: int) -> VertexId:
        return VertexId(self.kind.name, int(self.ids[at]))

    def read(self, name: str, at: int) -> Any:
        value = self.fields[name][at]
        return self.present(value) if isinstance(value, np.ndarray) else value.item()

    def write(self, name: str, at: int, value: Any) -> None:
        self.check_writable(name)
        self.fields[name][at] = value

    def neighbours(self, name: str, at: int) -> list[Vertex]:
        edges = self.edges[name]
        home = self.homes[edges.target]
        return [home.kind.cls._view(home, int(i)) for i in edges.index[edges.span(at, at + 1)]]

    def optimisers(self, at: int) -> list[Any]:
        return []


class Neighbours:
    """The edges of a batch along one field.

    `index` int64 (m,): positions in the batch of distinct neighbours that f receives; `offsets` int64 (n+1,) groups
    them by vertex; `weight` (m,) or None.
    """

    def __init__(self, index: Any, offsets: Any, weight: Any) -> None:
        self.index = index
        self.offsets = offsets
        self.weight = weight


class Batch(Generic[V]):
    """Several vertices of one type, one array per field: `images.pixels` has shape (len(images), 1, 28, 28).

    Reading gives a tensor (programs with a module) or a numpy array; for consecutive rows it is a view. Writing a
    mutable field, whole or in place, changes the vertices when f returns. An edge field reads as `Neighbours`.
    """

    _rows: Rows
    _at: slice | Ids
    _copies: dict[str, Array]
    _links: dict[str, Neighbours]

    @classmethod
    def _over(cls, rows: Rows, at: slice | Ids, links: dict[str, Neighbours] | None = None) -> Batch[V]:
        batch: Batch[V] = object.__new__(cls)
        for name, value in (("_rows", rows), ("_at", at), ("_copies", {}), ("_links", links or {})):
            object.__setattr__(batch, name, value)
        return batch

    @property
    def ids(self) -> Ids:
        """Indices of the vertices in the graph, int64 (n,)."""
        return self._rows.ids[self._at]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[V]:
        positions = np.arange(len(self._rows.ids))[self._at]
        return (self._rows.kind.cls._view(self._rows, int(i)) for i in positions)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name in self._links:
            return self._links[name]
        if name not in self._rows.fields:
            kind = self._rows.kind
            raise AttributeError(
                f"{kind.name} has no field {name!r} here; it has {list(self._rows.fields)} and edges "
                f"{list(self._links)}"
            )
        return self._rows.present(self._values(name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._rows.check_writable(name)
        self._values(name)[...] = value

    def _values(self, name: str) -> Array:
        """The field's rows: a view for a slice, else a copy that `_write_back` scatters."""
        if isinstance(self._at, slice):
            return self._rows.fields[name][self._at]
        if name not in self._copies:
            self._copies[name] = self._rows.fields[name][self._at]
        return self._copies[name]

    def _write_back(self) -> None:
        for name, values in self._copies.items():
            if name in self._rows.changed:
                self._rows.fields[name][self._at] = values
