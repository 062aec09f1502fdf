"""Versions of the master replica: their content, and their files.

A version's file is a bundle of tensors. Tensors of the replica have the names that are used on the wire
(`gridml.protocol.push`). The tensor "name#buffer" is a buffer of a merge rule, "@changed/Type" has the version in which
each vertex changed last. Array fields are stored whole, or as the rows that changed since a parent version
(`version_chain.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from gridml.aggregates import VertexState
from gridml.engine.lazy_dynamo import import_dynamo_lazily
from gridml.engine.modules import Modules
from gridml.errors import DamagedError, ProgramError
from gridml.model.graph import Graph
from gridml.model.order import places
from gridml.protocol import bundle
from gridml.protocol.push import Array, Ids, ReplicaPart, RowValues, VertexKey, module_key
from master.store.rundir import version_name
from master.store.version_chain import CHANGED, Chain, Parent, changed_rows, message_of, open_chain


def row_bytes(columns: Mapping[str, Array]) -> int:
    """Return the bytes of one row of these fields."""
    return sum(column[:1].nbytes for column in columns.values())


def fill(values: Mapping[str, Array], at: Ids, ids: Ids, records: Iterable[RowValues]) -> Ids:
    """Set rows of `values` from records. `values` has a row for each of `ids`; the rows at positions `at` are set, each
    from the first record that contains it.

    Returns the positions of rows that no record contains. The ids of a record ascend.
    """
    for record in records:
        if not len(at):
            break
        place, found = places(record.ids, ids[at])
        for name, column in values.items():
            column[at[found]] = record.fields[name][place[found]]
        at = at[~found]
    return at


_BUFFER = "#"
_NONE: Ids = np.empty(0, np.int64)
MAX_CHAIN_FILES = 256  # files of one version; bounded because reading the version opens all of them


class Base(Protocol):
    """A version on which a push is based. Rows are gathered on request.

    This object can share the memory of the newest version, so it is valid only until the newest version changes.
    """

    @property
    def modules(self) -> Mapping[VertexKey, VertexState]:
        """All modules."""

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return copies of the fields (n, *shape) of a type's rows, by name; empty for a type of modules."""

    def part(self, wanted: Mapping[str, Ids]) -> ReplicaPart:
        """Return the vertices `wanted` (ids by type) in wire format. Rows are copied; buffers are left out."""


class InParts:
    """Mix-in that implements `part` with a version's `modules` and `rows`."""

    def part(self: Base, wanted: Mapping[str, Ids]) -> ReplicaPart:
        """Return the vertices `wanted` (ids by type) in wire format. Rows are copied; buffers are left out."""
        modules: dict[VertexKey, dict[str, Array]] = {}
        rows: dict[str, RowValues] = {}
        for type_name, ids in wanted.items():
            if fields := self.rows(type_name, ids):
                if len(ids):
                    rows[type_name] = RowValues(ids, fields)
                continue
            keys = [(type_name, index) for index in ids.tolist()]
            modules.update({key: self.modules[key].tensors for key in keys if key in self.modules})
        return ReplicaPart(modules, rows)


@dataclass(frozen=True)
class ReplicaState(InParts):
    """The value of every replicated vertex. Mutated only by `Replica`."""

    modules: dict[VertexKey, VertexState] = field(default_factory=dict)
    #: by type and field: (count, *shape)
    arrays: dict[str, dict[str, Array]] = field(default_factory=dict)
    #: by type, int64 (count,): the version in which each vertex changed last
    changed: dict[str, Ids] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Yield every tensor with its name in files, without buffers."""
        for state in self.modules.values():
            yield from state.tensors.items()
        for type_name, columns in self.arrays.items():
            for name, column in columns.items():
                yield f"{type_name}/{name}", column

    def buffers(self) -> Iterator[tuple[str, Array]]:
        """Yield the buffers of merge rules with their names in files."""
        for state in self.modules.values():
            for name, buffers in state.buffers.items():
                yield from ((f"{name}{_BUFFER}{key}", buffer) for key, buffer in buffers.items())

    def __bool__(self) -> bool:
        """Return whether any type is replicated."""
        return bool(self.modules or self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors and buffers."""
        return sum(t.nbytes for _, t in (*self.tensors(), *self.buffers()))

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of rows, in copies; empty for a type of modules."""
        return {name: column[ids] for name, column in self.arrays.get(type_name, {}).items()}


def initial(graph: Graph, seed: int) -> ReplicaState:
    """Return the replica before any training: modules from their factories, seeded with `seed`, arrays from the graph.

    Raises ProgramError for a tensor whose name looks like a buffer's, and for a trained tensor that is not finite.
    """
    state = ReplicaState()
    constant: set[str] = set()
    for table in graph.replicated:
        type_name = table.type.name
        state.changed[type_name] = np.zeros(table.count, np.int64)
        if table.type.modules:
            import torch

            import_dynamo_lazily()
            torch.manual_seed(seed)
            modules = Modules(table.type)
            for index in range(table.count):
                tensors = {name: view.copy() for name, view in modules.views(index).items()}
                if marked := next((name for name in tensors if _BUFFER in name), None):
                    raise ProgramError(
                        f"tensor {marked!r} has '#' in its name, which marks buffers of merge rules; rename it"
                    )
                state.modules[type_name, index] = VertexState(tensors)
                constant |= tensors.keys() - modules.trained(index)  # untrained ones may hold infinities, as masks do
        else:
            state.arrays[type_name] = {name: np.array(column) for name, column in table.columns.items()}
    for name, tensor in state.tensors():
        if name not in constant and not np.isfinite(tensor).all():
            raise ProgramError(f"{name} begins with NaN or infinity, which no push can fix; give it finite values")
    return state


def _encode(state: ReplicaState) -> dict[str, Array]:
    changed = {f"{CHANGED}{type_name}": versions for type_name, versions in state.changed.items()}
    return {**dict(state.tensors()), **dict(state.buffers()), **changed}


def _decode(tensors: Mapping[str, Array]) -> ReplicaState:
    state = ReplicaState()
    for name, tensor in tensors.items():
        if name.startswith(CHANGED):
            state.changed[name.removeprefix(CHANGED)] = tensor
            continue
        tensor_name, _, buffer = name.partition(_BUFFER)
        key = module_key(tensor_name)
        if key is None:
            type_name, field_name = name.split("/")
            state.arrays.setdefault(type_name, {})[field_name] = tensor
            continue
        vertex = state.modules.setdefault(key, VertexState())
        if buffer:
            vertex.buffers.setdefault(tensor_name, {})[buffer] = tensor
        else:
            vertex.tensors[tensor_name] = tensor
    return state


@dataclass(frozen=True)
class _Mapped(InParts):
    """A version in mapped files. Its rows are gathered from the chain only on request."""

    modules: Mapping[VertexKey, VertexState]
    chain: Chain

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of rows, in copies; empty for a type of modules."""
        values = {name: column[ids] for name, column in self.chain.columns(type_name).items()}
        fill(values, np.arange(len(ids)), ids, self.chain.later(type_name))
        return values


@dataclass(frozen=True)
class Changes:
    """The rows that changed since a parent version."""

    parent: Parent
    rows: Mapping[str, Ids]  # ascending ids by type; a type that is missing did not change


@dataclass(frozen=True)
class _File:
    """Metadata of a version's file."""

    parent: int | None  # None for a whole file
    nbytes: int


class Versions:
    """Version files in a folder, such as `v00000012.safetensors`. A file is complete and durable before the ledger
    names it.

    A file is removed only after its children, which are the files that name it as their parent.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self._durable = durable
        self._opened: dict[int, _File] = {}  # cache of metadata, by version
        self._children: dict[int, set[int]] | None = None  # by version: its children; None: not read yet
        self._unwanted: set[int] = set()  # removed versions whose files remain because they have children
        self._doubted = False  # True: a damaged file was found, so the next file must be whole
        folder.mkdir(exist_ok=True)

    def path(self, version: int) -> Path:
        return self.folder / version_name(version)

    def write(self, version: int, state: ReplicaState, credited: int = 0, changes: Changes | None = None) -> str:
        """Write a version in which `credited` vertices are credited; return the SHA-256 of its file. Raises OSError.

        With `changes`, the file holds only the changed rows, unless a whole file is better.
        """
        message = {"version": version, "credited": credited}
        parent, tensors = None, None if changes is None else self._changed(state, changes)
        if changes is not None and tensors is not None:
            parent, message = changes.parent.version, message | changes.parent.message()
        payload = bundle.pieces(message, _encode(state) if tensors is None else tensors)
        bundle.write_atomic(self.path(version), payload, durable=self._durable)
        self._doubted = False  # while it is True, `_changed` returns None, so this file has all rows
        self._opened[version] = _File(parent, len(payload))
        if self._children is not None and parent is not None:
            self._children.setdefault(parent, set()).add(version)
        return payload.sha256

    def _changed(self, state: ReplicaState, changes: Changes) -> dict[str, Array] | None:
        """Return the tensors of an incremental file; None if a whole file is better.

        A whole file is better if more than half of the bytes changed, or if the incremental files of the chain together
        would be larger than a whole file. So reading a version reads at most twice its size, and all writes together
        write at most twice the bytes that changed.
        """
        chain = self._chain(changes.parent.version)
        if chain is None or len(chain) >= MAX_CHAIN_FILES or self._doubted:
            return None
        partly = {name: changes.rows.get(name, _NONE) for name in state.arrays}
        partly = {name: ids for name, ids in partly.items() if len(ids) < len(state.changed[name])}
        tensors = _encode(state)
        nbytes = whole = sum(tensor.nbytes for tensor in tensors.values())
        for name, ids in partly.items():  # a changed row stores its id instead of its entry in `changed`, equal in size
            nbytes -= (len(state.changed[name]) - len(ids)) * (ids.itemsize + row_bytes(state.arrays[name]))
        if not partly or 2 * nbytes > whole or sum(file.nbytes for file in chain[:-1]) + nbytes > whole:
            return None
        for name, ids in partly.items():
            del tensors[f"{CHANGED}{name}"]
            tensors |= changed_rows(name, ids, state.arrays[name])
        return tensors

    def read(self, version: int, sha256: str | None) -> ReplicaState:
        """Read a version into memory. Raises DamagedError if a file does not match its SHA-256."""
        return _decode(self._files_of(version, sha256, mapped=False).tensors())

    def mapped(self, version: int, sha256: str | None) -> Base:
        """Map a version read-only, which takes no memory of this process. Raises DamagedError as `read` does.

        Use the result at once, because later changes of the files show in its arrays.
        """
        chain = self._files_of(version, sha256, mapped=True)
        state = _decode(chain.files[0].others)
        return state if chain.files[0].parent is None else _Mapped(state.modules, chain)

    def _files_of(self, version: int, sha256: str | None, *, mapped: bool) -> Chain:
        try:
            return open_chain(self.folder, version, sha256, mapped=mapped)
        except DamagedError:
            self._doubted = True
            raise

    def newest_file(self) -> int:
        """Return the highest version that has a file, even if the ledger does not name it; -1 if there is no file."""
        return max(self._files(), default=-1)

    def _files(self) -> set[int]:
        names = (re.fullmatch(r"v(\d{8,})\.safetensors", name) for name in os.listdir(self.folder))
        return {int(name[1]) for name in names if name is not None}

    def credited_in(self, version: int) -> int | None:
        """Return the number of vertices credited in a version, from its file; None if the file cannot be read."""
        try:
            return int(message_of(self.path(version))["credited"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def has(self, version: int) -> bool:
        """Return whether all files of a version's chain exist."""
        return self._chain(version) is not None

    def sweep(self, kept: Collection[int]) -> None:
        """Remove the files that no version in `kept` needs, and temporary files of interrupted writes."""
        there = self._files()
        self._opened = {version: file for version, file in self._opened.items() if version in there}
        self._children, self._unwanted = None, there.difference(kept)
        for version in sorted(self._unwanted, reverse=True):
            self._drop(version)
        for name in os.listdir(self.folder):
            if re.fullmatch(r"\.v\d{8,}\.safetensors\.\d+\.tmp", name):
                (self.folder / name).unlink(missing_ok=True)

    def copy(self, version: int, sha256: str | None, to: int, credited: int) -> str:
        """Write an older version as the new version `to`, in which every vertex counts as changed; return its SHA-256.
        Raises DamagedError."""
        state = self.read(version, sha256)
        changed = {name: np.full_like(versions, to) for name, versions in state.changed.items()}
        return self.write(to, replace(state, changed=changed), credited)

    def remove(self, version: int) -> None:
        """Remove a version's file. If the file has children, only mark it as unwanted: it is removed after them."""
        self._unwanted.add(version)
        self._drop(version)

    def _drop(self, version: int) -> None:
        """Remove a file if it is unwanted and has no children; then do the same with its parent."""
        at: int | None = version
        while at is not None and at in self._unwanted and not (children := self._all_children()).get(at):
            file = self._file(at)
            self.path(at).unlink(missing_ok=True)
            self._unwanted.discard(at)
            self._opened.pop(at, None)
            if (parent := None if file is None else file.parent) is not None:
                children.get(parent, set()).discard(at)
            at = parent

    def _all_children(self) -> dict[int, set[int]]:
        if self._children is None:
            self._children = {}
            for version in self._files():
                if (file := self._file(version)) is not None and file.parent is not None:
                    self._children.setdefault(file.parent, set()).add(version)
        return self._children

    def _chain(self, version: int) -> list[_File] | None:
        """Return the files of a version's chain, its own file first and a whole file last; None if one is missing."""
        chain: list[_File] = []
        at: int | None = version
        while at is not None:
            file = self._file(at)
            if file is None:
                return None
            chain.append(file)
            at = file.parent
        return chain

    def _file(self, version: int) -> _File | None:
        """Return the metadata of a file; None if it is missing or is not a version. Raises OSError if it cannot be
        read."""
        # A file that cannot be read must not count as missing, because its parent would then be removed.
        if version not in self._opened:
            path = self.path(version)
            try:
                parent = Parent.of(message_of(path), version)
                nbytes = path.stat().st_size
            except (FileNotFoundError, ValueError):
                return None
            self._opened[version] = _File(None if parent is None else parent.version, nbytes)
        return self._opened[version]
