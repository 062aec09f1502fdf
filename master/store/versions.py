"""Versions of the master replica: what one holds, and its file.

A version's file is a bundle. It holds the tensors by the names they travel under (`gridml.protocol.push`), array fields
whole, and beside them "name#buffer" for what a merge rule remembers of a tensor, and "@changed/Type".
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState
from gridml.engine.lazy_dynamo import import_dynamo_lazily
from gridml.engine.modules import Modules
from gridml.errors import DamagedError, ProgramError
from gridml.model.graph import Graph
from gridml.protocol import bundle
from gridml.protocol.push import ReplicaPart, RowValues, VertexKey, module_key
from master.store.rundir import version_name

Array = NDArray[Any]
Ids = NDArray[np.int64]

_CHANGED, _BUFFER = "@changed/", "#"


@dataclass(frozen=True)
class ReplicaState:
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

    def part(self, wanted: Mapping[str, Ids]) -> ReplicaPart:
        """Return the vertices `wanted`, ids by type, as they travel: rows in copies, without buffers."""
        modules: dict[VertexKey, dict[str, Array]] = {}
        rows: dict[str, RowValues] = {}
        for type_name, ids in wanted.items():
            if columns := self.arrays.get(type_name):
                if len(ids):
                    rows[type_name] = RowValues(ids, {name: column[ids] for name, column in columns.items()})
                continue
            keys = [(type_name, index) for index in ids.tolist()]
            modules.update({key: self.modules[key].tensors for key in keys if key in self.modules})
        return ReplicaPart(modules, rows)


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
    changed = {f"{_CHANGED}{type_name}": versions for type_name, versions in state.changed.items()}
    return {**dict(state.tensors()), **dict(state.buffers()), **changed}


def _decode(tensors: Mapping[str, Array]) -> ReplicaState:
    state = ReplicaState()
    for name, tensor in tensors.items():
        if name.startswith(_CHANGED):
            state.changed[name.removeprefix(_CHANGED)] = tensor
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


class Versions:
    """Version files in a folder: `v00000012.safetensors`, whole and durable before the ledger names them."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self._durable = durable
        folder.mkdir(exist_ok=True)

    def path(self, version: int) -> Path:
        return self.folder / version_name(version)

    def write(self, version: int, state: ReplicaState, credited: int = 0) -> str:
        """Write a version, in which so many vertices are credited, and return its SHA-256. Raises OSError."""
        payload = bundle.pieces({"version": version, "credited": credited}, _encode(state))
        bundle.write_atomic(self.path(version), *payload, durable=self._durable)
        return bundle.digest(*payload)

    def read(self, version: int, sha256: str | None) -> ReplicaState:
        """Return what a version holds. Raises DamagedError when the file is not what the ledger says."""
        path = self.path(version)
        try:
            payload = path.read_bytes()
        except FileNotFoundError as error:
            raise DamagedError(f"{path}, version {version} of the replica, is gone", path) from error
        if sha256 is not None and bundle.digest(payload) != sha256:
            raise DamagedError(f"{path} is damaged: its SHA-256 is not the one in the ledger", path)
        return _decode(bundle.decode(payload)[1])

    def mapped(self, version: int, sha256: str | None) -> ReplicaState:
        """Return what a version holds as read-only arrays on its file, which takes no memory of this process's own.

        For one use, soon: what happens to the file later shows in them. Raises DamagedError as `read` does.
        """
        path = self.path(version)
        try:
            file = np.memmap(path, np.uint8, "r")
        except (FileNotFoundError, ValueError) as error:  # an empty file cannot be mapped
            raise DamagedError(f"{path}, version {version} of the replica, is gone", path) from error
        if sha256 is not None and bundle.digest(file.data) != sha256:
            raise DamagedError(f"{path} is damaged: its SHA-256 is not the one in the ledger", path)
        return _decode(bundle.opened(file.data)[1])

    def newest_file(self) -> int:
        """Return the highest version that there is a file of, whether the ledger names it or not; -1 without any."""
        return max(self._files(), default=-1)

    def _files(self) -> list[int]:
        names = (re.fullmatch(r"v(\d{8,})\.safetensors", name) for name in os.listdir(self.folder))
        return [int(name[1]) for name in names if name is not None]

    def credited_in(self, version: int) -> int | None:
        """Return the vertices of the run that are credited in a version, None where its file does not say so."""
        try:
            message, _ = bundle.opened(self.path(version).read_bytes())
            return int(message["credited"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def sweep(self, kept: Collection[int]) -> None:
        """Remove the files of all versions but these."""
        for version in self._files():
            if version not in kept:
                self.remove(version)

    def copy(self, version: int, sha256: str | None, to: int, credited: int) -> str:
        """Make an older version, in which so many vertices are credited, a new one in which every vertex has changed;
        return its SHA-256. Raises DamagedError."""
        state = self.read(version, sha256)
        changed = {name: np.full_like(versions, to) for name, versions in state.changed.items()}
        return self.write(to, replace(state, changed=changed), credited)

    def remove(self, version: int) -> None:
        self.path(version).unlink(missing_ok=True)
