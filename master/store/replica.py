"""The master replica: the authoritative value of every replicated vertex, and the older ones that pushes stand on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from gridml.aggregates import VertexState
from gridml.model.graph import Graph
from gridml.model.ids import ascending
from gridml.protocol.push import Ids, ModuleTensors, ReplicaPart, RowValues, VertexKey
from master.known_rows import Touched
from master.store.overwritten import OlderVersion, OverwrittenRows
from master.store.version_chain import Parent
from master.store.versions import Base, Changes, ReplicaState, Versions

_NONE: Ids = np.empty(0, np.int64)
BASES_BYTES = 1 << 27  # that older versions take in memory, however many workers stand on how many of them: so many for
# modules, and so many for rows that were overwritten since
FEW_BASES = 16  # where so few fit that most would not be there, they are not read into memory for one push


class Replica:
    """The newest version in memory, and the older ones that pushes may still name as their base.

    Staleness is per vertex: one that did not change since a push's base is merged as if nobody else had trained.
    """

    def __init__(self, graph: Graph, versions: Versions) -> None:
        self._versions = versions
        self._has_rows = any(table.type.arrays for table in graph.replicated)
        self.version = -1
        self.next_version = 0  # not always the one after: see `Ledger.take_over`
        self.state = ReplicaState()
        self._sha256: str | None = None  # of the newest version's file
        self._bases: dict[int, ReplicaState] = {}  # without rows
        self._overwritten = OverwrittenRows(BASES_BYTES)
        self._changed_rows: dict[str, list[Ids]] = {}  # since the newest version, by type
        self._stood_since: dict[str, int] = {}  # version, of a tensor that did not change when its vertex did last
        self._merging = False  # the state is ahead of `version`

    def start(self, state: ReplicaState) -> str:
        """Make version 0 and return its SHA-256."""
        self.state = state
        self.version, self.next_version = 0, 1
        self._overwritten.restart(0)
        self._sha256 = self._versions.write(0, state)
        return self._sha256

    def load(self, version: int, sha256: str | None, next_version: int = 0) -> None:
        """Go on from a version's file. Raises DamagedError."""
        self._bases.clear()
        self._stood_since.clear()
        self.state = self._versions.read(version, sha256)
        self.version, self.next_version = version, max(next_version, version + 1)
        self._sha256, self._merging = sha256, False
        self._overwritten.restart(version)
        self._changed_rows.clear()

    def base(self, version: int, sha256: str | None) -> Base:
        """Return an older version, of use until the next `put`. One that is not in memory is mapped from its files, if
        it has rows or is too large to be taken there beside others. Raises DamagedError.

        Tensors of modules are never changed in place, so versions share them; of rows what was overwritten is kept.
        """
        if version == self.version and version not in self._bases and not self._merging:
            return self.state
        kept = self._bases.get(version)
        if kept is not None and not self._has_rows:
            return kept
        if kept is not None and self._overwritten.reach <= version:
            return OlderVersion(version, kept.modules, self.state, self._overwritten)
        if self._has_rows or self._most_bases < FEW_BASES:
            return self._versions.mapped(version, sha256)
        self._keep(version, self._versions.read(version, sha256))
        return self._bases[version]

    @property
    def _most_bases(self) -> int:
        return BASES_BYTES // max(1, replace(self.state, arrays={}).nbytes)

    def _keep(self, version: int, state: ReplicaState) -> None:
        """Keep a version in memory, and of those that were kept before the last, as many as there is room for."""
        self._bases[version] = state
        for old in list(self._bases)[: -self._most_bases or None]:
            del self._bases[old]

    def put(self, modules: Mapping[VertexKey, VertexState], rows: Mapping[str, RowValues], version: int) -> None:
        """Take merged values into what will be `version`: those tensors of modules that change, array fields by
        row."""
        self._merging = True
        for key, new in modules.items():
            old, since = self.state.modules[key], int(self.state.changed[key[0]][key[1]])
            for name in old.tensors:
                if name in new.tensors:
                    self._stood_since.pop(name, None)
                else:
                    self._stood_since.setdefault(name, since)
            self.state.modules[key] = VertexState({**old.tensors, **new.tensors}, {**old.buffers, **new.buffers})
            self.state.changed[key[0]][key[1]] = version
        for type_name, new_rows in rows.items():
            columns, ids = self.state.arrays[type_name], ascending(new_rows.ids)
            ids = ids[self.state.changed[type_name][ids] < version]  # the first time
            self._overwritten.add(version, type_name, ids, columns)
            self._changed_rows.setdefault(type_name, []).append(ids)
            for name, values in new_rows.fields.items():
                columns[name][new_rows.ids] = values
            self.state.changed[type_name][new_rows.ids] = version

    def begin_version(self) -> None:
        """Keep what is newest now as a base, before a group of pushes is merged on top of it."""
        self._keep(self.version, ReplicaState(dict(self.state.modules)))

    def commit_version(self, version: int, credited: int = 0) -> str:
        """Write what was put as `version`, in which so many vertices are credited; return its SHA-256. Raises
        OSError."""
        changes = None
        if self._sha256 is not None and self._has_rows:
            rows = {name: ascending(*ids) for name, ids in self._changed_rows.items()}
            changes = Changes(Parent(self.version, self._sha256), rows)
        self._sha256 = self._versions.write(version, self.state, credited, changes)
        self.version, self.next_version, self._merging = version, version + 1, False
        self._changed_rows.clear()
        if self._most_bases < 2:  # where the next group keeps one, it is the newest
            self._bases.clear()
        return self._sha256

    @property
    def file_bytes(self) -> int:
        """Bytes of the newest version's file, which of array fields may hold the rows that changed."""
        return self._versions.path(self.version).stat().st_size

    @property
    def whole_file(self) -> tuple[Path, str] | None:
        """The newest version's file and its SHA-256, where it holds all of it."""
        if self._sha256 is None or self._has_rows:
            return None
        return self._versions.path(self.version), self._sha256

    def forget(self, version: int) -> None:
        """Remove a version that no push will name any more."""
        self._bases.pop(version, None)
        self._versions.remove(version)

    def outgoing(
        self,
        touched: Touched,
        have: int,
        fresh: Touched,
        copied: Touched = MappingProxyType({}),
        copies: int = -1,
    ) -> ReplicaPart:
        """Return what a worker at version `have` lacks: what changed since of `touched`, row by row and tensor by
        tensor, and all of `fresh`; but of modules that are `copied` at version `copies`, what changed since."""
        wanted = {}
        for type_name in {**touched, **fresh}:
            old = touched.get(type_name, _NONE)
            lacking = old[self.state.changed[type_name][old] > have]
            wanted[type_name] = ascending(lacking, fresh.get(type_name, _NONE))
        part = self.state.part(wanted)
        since = dict.fromkeys(part.modules, have) | dict.fromkeys(self._modules(fresh), -1)
        since |= {key: copies for key in self._modules(copied) if since.get(key) == -1}
        modules = {key: self._changed(key, tensors, since[key]) for key, tensors in part.modules.items()}
        return ReplicaPart({key: tensors for key, tensors in modules.items() if tensors}, part.rows)

    def _modules(self, vertices: Touched) -> list[VertexKey]:
        named = ((name, ids.tolist()) for name, ids in vertices.items() if name not in self.state.arrays)
        return [(name, index) for name, indices in named for index in indices]

    def _changed(self, key: VertexKey, tensors: ModuleTensors, since: int) -> ModuleTensors:
        vertex = int(self.state.changed[key[0]][key[1]])
        return {name: tensor for name, tensor in tensors.items() if self._stood_since.get(name, vertex) > since}


def without(touched: Touched, others: Touched) -> dict[str, Ids]:
    """Return the vertices of `touched` that are not in `others`."""
    return {type_name: np.setdiff1d(ids, others.get(type_name, _NONE)) for type_name, ids in touched.items()}


def union(parts: Iterable[Touched]) -> dict[str, Ids]:
    """Return the vertices that are in any of `parts`."""
    wanted: dict[str, list[Ids]] = {}
    for part in parts:
        for type_name, ids in part.items():
            wanted.setdefault(type_name, []).append(ids)
    return {type_name: ascending(*ids) for type_name, ids in wanted.items()}
