"""Versions of the master replica: what one holds, and its file.

A version's file is a bundle. It holds the tensors by the names they travel under (`gridml.protocol.push`), and
beside them "name#buffer" for what a merge rule remembers of a tensor, and "@changed/Type". Array fields are there
whole, or as the rows that changed since another version (`version_chain.py`). The rows of one array field may lie
in several files, each on top of the one before.
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
    """Return the bytes of a row of these fields."""
    return sum(column[:1].nbytes for column in columns.values())


def fill(values: Mapping[str, Array], at: Ids, ids: Ids, records: Iterable[RowValues]) -> Ids:
    """Give the rows at the positions `at` of `ids` the values that the first record has of each; return the positions
    of those that are in none. The ids of a record ascend."""
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
MAX_CHAIN_FILES = 256  # files that a version takes, however few rows they hold: each must be opened to read it


class Base(Protocol):
    """A version as a push stands on it: of its rows, only those are gathered that are asked for.

    It may be on the memory of the newest version, and is of use until that changes.
    """

    @property
    def modules(self) -> Mapping[VertexKey, VertexState]:
        """All modules."""

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields (n, *shape) of some rows of a type by name, in copies; none of a type of modules."""

    def part(self, wanted: Mapping[str, Ids]) -> ReplicaPart:
        """Return the vertices `wanted`, ids by type, as they travel: rows in copies, without buffers."""


class InParts:
    """What of a version travels, made of its modules and rows."""

    def part(self: Base, wanted: Mapping[str, Ids]) -> ReplicaPart:
        """Return the vertices `wanted`, ids by type, as they travel: rows in copies, without buffers."""
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
    """The value of every replicated vertex: modules one by one, array fields `arrays[type][field]` (count, *shape).

    `changed[type]` int64 (count,) is the version in which each vertex changed last.
    """

    modules: dict[VertexKey, VertexState] = field(default_factory=dict)
    arrays: dict[str, dict[str, Array]] = field(default_factory=dict)
    changed: dict[str, Ids] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Yield every tensor with the name it has in files, but no buffers."""
        for state in self.modules.values():
            yield from state.tensors.items()
        for type_name, columns in self.arrays.items():
            for name, column in columns.items():
                yield f"{type_name}/{name}", column

    def buffers(self) -> Iterator[tuple[str, Array]]:
        """Yield what merge rules remember, with the names in files."""
        for state in self.modules.values():
            for name, buffers in state.buffers.items():
                yield from ((f"{name}{_BUFFER}{key}", buffer) for key, buffer in buffers.items())

    def __bool__(self) -> bool:
        """Say whether anything is replicated."""
        return bool(self.modules or self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors and buffers."""
        return sum(t.nbytes for _, t in (*self.tensors(), *self.buffers()))

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of some rows, in copies; none of a type of modules."""
        return {name: column[ids] for name, column in self.arrays.get(type_name, {}).items()}


def initial(graph: Graph, seed: int) -> ReplicaState:
    """Return the replica before any training: modules from their factories under `seed`, arrays as they were added.

    Raises ProgramError for a tensor whose name cannot be told from a buffer's, and for one that is trained and not
    finite. Buffers may hold infinities, as masks do, as long as f leaves them as they are.
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
                constant |= tensors.keys() - modules.trained(index)
        else:
            state.arrays[type_name] = {name: np.array(column) for name, column in table.columns.items()}
    for name, tensor in state.tensors():
        if name not in constant and not np.isfinite(tensor).all():
            raise ProgramError(f"{name} begins with NaN or infinity, and no push can mend that; give it finite values")
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
    """A version on the files that it takes."""

    modules: Mapping[VertexKey, VertexState]
    chain: Chain

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of some rows, in copies; none of a type of modules."""
        values = {name: column[ids] for name, column in self.chain.columns(type_name).items()}
        fill(values, np.arange(len(ids)), ids, self.chain.later(type_name))
        return values


@dataclass(frozen=True)
class Changes:
    """Rows that changed since a version, the parent: by type, ids in order. All others of these types did not."""

    parent: Parent
    rows: Mapping[str, Ids]


@dataclass(frozen=True)
class _File:
    """A file of `nbytes` bytes, and the version that it stands on, None where it is whole."""

    parent: int | None
    nbytes: int


class Versions:
    """Version files in a folder: `v00000012.safetensors`, whole and durable before the ledger names them.

    A file that others stand on stays as long as they do.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self._durable = durable
        self._opened: dict[int, _File] = {}  # those that were looked into
        self._standing: dict[int, set[int]] | None = None  # by version: those whose files name it as their parent
        self._unwanted: set[int] = set()  # versions whose files are there for others alone
        self._doubted = False  # a file was found damaged, on which the newest version may stand
        folder.mkdir(exist_ok=True)

    def path(self, version: int) -> Path:
        return self.folder / version_name(version)

    def write(self, version: int, state: ReplicaState, credited: int = 0, changes: Changes | None = None) -> str:
        """Write a version, in which so many vertices are credited, and return its SHA-256. Of its rows, where `changes`
        says which changed, only these as long as that is less to write and not too much to read. Raises OSError."""
        message = {"version": version, "credited": credited}
        parent, tensors = None, None if changes is None else self._changed(state, changes)
        if changes is not None and tensors is not None:
            parent, message = changes.parent.version, message | changes.parent.message()
        payload = bundle.pieces(message, _encode(state) if tensors is None else tensors)
        bundle.write_atomic(self.path(version), payload, durable=self._durable)
        self._doubted = False  # what was doubted nothing stands on
        self._opened[version] = _File(parent, len(payload))
        if self._standing is not None and parent is not None:
            self._standing.setdefault(parent, set()).add(version)
        return payload.sha256

    def _changed(self, state: ReplicaState, changes: Changes) -> dict[str, Array] | None:
        """Return the tensors of a file that stands on another one; None where it had better be whole: because more than
        half of it changed, or all that was written since a whole file would be larger than one.

        So no version takes more than twice its size to read, and all together at most twice what changed to write.
        """
        chain = self._chain(changes.parent.version)
        if chain is None or len(chain) >= MAX_CHAIN_FILES or self._doubted:
            return None
        partly = {name: changes.rows.get(name, _NONE) for name in state.arrays}
        partly = {name: ids for name, ids in partly.items() if len(ids) < len(state.changed[name])}
        tensors = _encode(state)
        nbytes = whole = sum(tensor.nbytes for tensor in tensors.values())
        for name, ids in partly.items():  # its id takes a row as many bytes as when it changed
            nbytes -= (len(state.changed[name]) - len(ids)) * (ids.itemsize + row_bytes(state.arrays[name]))
        if not partly or 2 * nbytes > whole or sum(file.nbytes for file in chain[:-1]) + nbytes > whole:
            return None
        for name, ids in partly.items():
            del tensors[f"{CHANGED}{name}"]
            tensors |= changed_rows(name, ids, state.arrays[name])
        return tensors

    def read(self, version: int, sha256: str | None) -> ReplicaState:
        """Return what a version holds. Raises DamagedError when a file is not what the ledger says."""
        return _decode(self._files_of(version, sha256, mapped=False).tensors())

    def mapped(self, version: int, sha256: str | None) -> Base:
        """Return a version as read-only arrays on its files, which take no memory of this process's own.

        For one use, soon: what happens to the files later shows in them. Raises DamagedError as `read` does.
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
        """Return the highest version that there is a file of, whether the ledger names it or not; -1 without any."""
        return max(self._files(), default=-1)

    def _files(self) -> set[int]:
        names = (re.fullmatch(r"v(\d{8,})\.safetensors", name) for name in os.listdir(self.folder))
        return {int(name[1]) for name in names if name is not None}

    def credited_in(self, version: int) -> int | None:
        """Return the vertices of the run that are credited in a version, None where its file does not say so."""
        try:
            return int(message_of(self.path(version))["credited"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def has(self, version: int) -> bool:
        """Return whether the files that a version takes are there."""
        return self._chain(version) is not None

    def sweep(self, kept: Collection[int]) -> None:
        """Remove the files that none of these versions takes, and what is left of files that were not finished."""
        there = self._files()
        self._opened = {version: file for version, file in self._opened.items() if version in there}
        self._standing, self._unwanted = None, there.difference(kept)
        for version in sorted(self._unwanted, reverse=True):
            self._drop(version)
        for name in os.listdir(self.folder):
            if re.fullmatch(r"\.v\d{8,}\.safetensors\.\d+\.tmp", name):
                (self.folder / name).unlink(missing_ok=True)

    def copy(self, version: int, sha256: str | None, to: int, credited: int) -> str:
        """Make an older version, in which so many vertices are credited, a new one in which every vertex has changed;
        return its SHA-256. Raises DamagedError."""
        state = self.read(version, sha256)
        changed = {name: np.full_like(versions, to) for name, versions in state.changed.items()}
        return self.write(to, replace(state, changed=changed), credited)

    def remove(self, version: int) -> None:
        """Remove a version's file, and those that were there for it alone; it stays while others stand on it."""
        self._unwanted.add(version)
        self._drop(version)

    def _drop(self, version: int) -> None:
        """Remove a file that is unwanted and that no other stands on, and then perhaps what it stood on."""
        at: int | None = version
        while at is not None and at in self._unwanted and not (standing := self._all_standing()).get(at):
            file = self._file(at)
            self.path(at).unlink(missing_ok=True)
            self._unwanted.discard(at)
            self._opened.pop(at, None)
            if (parent := None if file is None else file.parent) is not None:
                standing.get(parent, set()).discard(at)
            at = parent

    def _all_standing(self) -> dict[int, set[int]]:
        if self._standing is None:
            self._standing = {}
            for version in self._files():
                if (file := self._file(version)) is not None and file.parent is not None:
                    self._standing.setdefault(file.parent, set()).add(version)
        return self._standing

    def _chain(self, version: int) -> list[_File] | None:
        """The files that a version takes, its own first and a whole one last; None where one is not there."""
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
        """Look into a file; None where there is none, or none of a version. Raises OSError where that cannot be told,
        as what it stands on must stay."""
        if version not in self._opened:
            path = self.path(version)
            try:
                parent = Parent.of(message_of(path), version)
                nbytes = path.stat().st_size
            except (FileNotFoundError, ValueError):
                return None
            self._opened[version] = _File(None if parent is None else parent.version, nbytes)
        return self._opened[version]
