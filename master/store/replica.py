"""The master replica: the authoritative value of every replicated vertex, and older versions on which pushes are based.

Older versions share the memory of the newest one (copy on write). `OverwrittenRows` is an undo log for rows of array
fields. To read a row of an older version, take the oldest record of the row that was made after that version; without
such a record, take the current value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState
from gridml.model.graph import Graph
from gridml.model.order import Touched, ascending, places
from gridml.protocol.push import Array, Ids, ModuleTensors, ReplicaPart, RowValues, VertexKey
from master.store.version_chain import Parent
from master.store.versions import Base, Changes, InParts, ReplicaState, Versions, fill, row_bytes

RECORD_BYTES = 1 << 10  # estimated overhead of a record's Python objects, without its arrays


@dataclass(frozen=True)
class _Record:
    """Rows of a type, with their values before `version` overwrote them."""

    version: int
    type_name: str
    rows: RowValues

    @property
    def nbytes(self) -> int:
        return RECORD_BYTES + self.rows.ids.nbytes + sum(column.nbytes for column in self.rows.fields.values())

    def with_rows(self, others: RowValues) -> _Record:
        """Return this record with further rows added, sorted by id."""
        ids = np.concatenate([self.rows.ids, others.ids])
        order = np.argsort(ids, kind="stable")
        fields = {
            name: np.concatenate([column, others.fields[name]])[order] for name, column in self.rows.fields.items()
        }
        return replace(self, rows=RowValues(ids[order], fields))


class OverwrittenRows:
    """An undo log of at most `max_bytes`: old values of rows, back to version `reach`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reach = -1  # the oldest version that can be reconstructed
        self.nbytes = 0  # of all records; never above `max_bytes` after `add`
        self._records: list[_Record] = []  # always sorted by version; a row has at most one record per version

    def restart(self, version: int) -> None:
        """Drop all records, so that no version before `version`, the newest, can be reconstructed."""
        self._records.clear()
        self.reach, self.nbytes = version, 0

    def add(self, version: int, type_name: str, ids: Ids, columns: Mapping[str, Array]) -> None:
        """Record the current values of rows before `version` overwrites them for the first time.

        `ids` must ascend; the array is kept without a copy. The oldest records are dropped to make room.
        """
        if version <= self.reach:
            return
        if RECORD_BYTES + len(ids) * (ids.itemsize + row_bytes(columns)) > self.max_bytes:
            self.restart(version)
            return
        record = _Record(version, type_name, RowValues(ids, {name: column[ids] for name, column in columns.items()}))
        self._records.append(self._joined(record))
        self.nbytes += self._records[-1].nbytes
        if self.nbytes > self.max_bytes:
            self._shorten()

    def _joined(self, record: _Record) -> _Record:
        """Merge `record` with the log's records of the same version and type that have at most twice as many rows.
        Remove these from the log, and return the merged record."""
        # As in a log-structured merge tree, each remaining record has more than twice as many rows as the next. So a
        # version made of many pushes has few records to search, and a row is seldom moved.
        at = len(self._records) - 1
        while at >= 0 and self._records[at].version == record.version:
            other = self._records[at]
            if other.type_name == record.type_name and len(other.rows.ids) <= 2 * len(record.rows.ids):
                self.nbytes -= self._records.pop(at).nbytes
                record = other.with_rows(record.rows)
            at -= 1
        return record

    def _shorten(self) -> None:
        """Drop the records of the oldest versions until the rest fits."""
        dropped = 0
        while self.nbytes > self.max_bytes:
            self.nbytes -= self._records[dropped].nbytes
            dropped += 1
        self.reach = self._records[dropped - 1].version
        # A version is dropped as a whole: part of its records could not reconstruct the version before it.
        while dropped < len(self._records) and self._records[dropped].version == self.reach:
            self.nbytes -= self._records[dropped].nbytes
            dropped += 1
        del self._records[:dropped]

    def since(self, version: int, type_name: str) -> Iterator[RowValues]:
        """Yield the rows of a type in the records made after `version`, oldest first."""
        return (rows for _, rows in self.records(version, type_name))

    def records(self, version: int, type_name: str) -> Iterator[tuple[int, RowValues]]:
        """Yield (version that overwrote them, rows of a type) for the records made after `version`, oldest first."""
        begin = bisect_right(self._records, version, key=attrgetter("version"))
        return ((each.version, each.rows) for each in self._records[begin:] if each.type_name == type_name)


@dataclass(frozen=True)
class OlderVersion(InParts):
    """An older version, read from the memory of the newest and its undo log; valid while the log reaches back to it."""

    version: int
    modules: Mapping[VertexKey, VertexState]  # of this version; shared, because modules are never changed in place
    state: ReplicaState  # of the newest version
    overwritten: OverwrittenRows

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of rows as of this version, in copies; empty for a type of modules."""
        assert self.overwritten.reach <= self.version, "the replica did not change since the version was requested"
        values = self.state.rows(type_name, ids)
        if values:
            later = np.flatnonzero(self.state.changed[type_name][ids] > self.version)
            left = fill(values, later, ids, self.overwritten.since(self.version, type_name))
            assert not len(left), "every row that changed since has a record"
        return values


_NONE: Ids = np.empty(0, np.int64)
# Bound on the memory of older versions, however many workers use them. It applies once to modules, and once to
# overwritten rows.
MAX_BASES_BYTES = 1 << 27
# A base is the version on which a push is based. If fewer bases than this fit in memory, most would be evicted before
# their next use, so a base is mapped from its file instead.
MIN_BASES = 16


class Replica:
    """The newest version, in memory, and the older versions that pushes can still name as their base.

    Staleness is per vertex: a vertex that did not change since a push's base is merged as if no other worker had
    trained.
    """

    def __init__(self, graph: Graph, versions: Versions) -> None:
        self._versions = versions
        self._has_rows = any(table.type.arrays for table in graph.replicated)
        self.version = -1
        self.next_version = 0  # not always `version` + 1: see `Ledger.take_over`
        self.state = ReplicaState()
        self._sha256: str | None = None  # of the newest version's file
        self._bases: dict[int, ReplicaState] = {}  # older versions in memory, without rows; the newest last
        self._overwritten = OverwrittenRows(MAX_BASES_BYTES)
        self._changed_rows: dict[str, list[Ids]] = {}  # by type: ids of rows changed since the newest version
        # By name: the version of a tensor's last change. It holds only tensors that the last change of their vertex did
        # not change.
        self._unchanged_since: dict[str, int] = {}
        self._merging = False  # between `put` and `commit_version`: the state is ahead of `version`

    def start(self, state: ReplicaState) -> str:
        """Make version 0 and return its SHA-256."""
        self.state = state
        self.version, self.next_version = 0, 1
        self._overwritten.restart(0)
        self._sha256 = self._versions.write(0, state)
        return self._sha256

    def load(self, version: int, sha256: str | None, next_version: int = 0) -> None:
        """Load a version from its files as the newest. Raises DamagedError."""
        self._bases.clear()
        self._unchanged_since.clear()
        self.state = self._versions.read(version, sha256)
        self.version, self.next_version = version, max(next_version, version + 1)
        self._sha256, self._merging = sha256, False
        self._overwritten.restart(version)
        self._changed_rows.clear()

    def base(self, version: int, sha256: str | None) -> Base:
        """Return the version on which a push is based; it is valid until the next `put`. Raises DamagedError.

        A version that is not in memory is mapped from its files if it has rows, or if few versions fit in memory;
        otherwise it is read into memory.
        """
        if version == self.version and version not in self._bases and not self._merging:
            return self.state
        kept = self._bases.get(version)
        if kept is not None and not self._has_rows:
            return kept
        if kept is not None and self._overwritten.reach <= version:
            return OlderVersion(version, kept.modules, self.state, self._overwritten)
        if self._has_rows or self._max_bases < MIN_BASES:
            return self._versions.mapped(version, sha256)
        self._keep(version, self._versions.read(version, sha256))
        return self._bases[version]

    @property
    def _max_bases(self) -> int:
        return MAX_BASES_BYTES // max(1, replace(self.state, arrays={}).nbytes)

    def _keep(self, version: int, state: ReplicaState) -> None:
        """Keep a version in memory, and evict the oldest that no longer fit."""
        self._bases[version] = state
        for old in list(self._bases)[: -self._max_bases or None]:
            del self._bases[old]

    def put(self, modules: Mapping[VertexKey, VertexState], rows: Mapping[str, RowValues], version: int) -> None:
        """Store merged values in the state that will be `version`: changed tensors of modules, and rows of arrays."""
        self._merging = True
        for key, new in modules.items():
            old, since = self.state.modules[key], int(self.state.changed[key[0]][key[1]])
            for name in old.tensors:
                if name in new.tensors:
                    self._unchanged_since.pop(name, None)
                else:
                    self._unchanged_since.setdefault(name, since)
            # A new object, because older versions share the old one.
            self.state.modules[key] = VertexState({**old.tensors, **new.tensors}, {**old.buffers, **new.buffers})
            self.state.changed[key[0]][key[1]] = version
        for type_name, new_rows in rows.items():
            columns, ids = self.state.arrays[type_name], ascending(new_rows.ids)
            ids = ids[self.state.changed[type_name][ids] < version]  # only the first change in a version is recorded
            self._overwritten.add(version, type_name, ids, columns)
            self._changed_rows.setdefault(type_name, []).append(ids)
            for name, values in new_rows.fields.items():
                columns[name][new_rows.ids] = values
            self.state.changed[type_name][new_rows.ids] = version

    def rows_as_of(self, type_name: str, ids: Ids, versions: NDArray[np.int32]) -> tuple[dict[str, Array], Ids]:
        """Return (the fields of rows, each as of its own version; the positions of rows whose values are not known any
        more, which are wrong)."""
        values = self.state.rows(type_name, ids)
        forgotten = versions < self._overwritten.reach
        left = np.flatnonzero((self.state.changed[type_name][ids] > versions) & ~forgotten)
        first = int(versions[left].min(initial=self.version))
        for version, record in self._overwritten.records(first, type_name):
            if not len(left):
                break
            at, found = places(record.ids, ids[left])
            found &= versions[left] < version
            for name, column in values.items():
                column[left[found]] = record.fields[name][at[found]]
            left = left[~found]
        return values, np.union1d(np.flatnonzero(forgotten), left)

    def begin_version(self) -> None:
        """Keep the newest version as a base before a group of pushes is merged into it."""
        self._keep(self.version, ReplicaState(dict(self.state.modules)))

    def commit_version(self, version: int, credited: int = 0) -> str:
        """Write the state as `version`, with `credited` vertices credited; return its SHA-256. Raises OSError."""
        changes = None
        if self._sha256 is not None and self._has_rows:
            rows = {name: ascending(*ids) for name, ids in self._changed_rows.items()}
            changes = Changes(Parent(self.version, self._sha256), rows)
        self._sha256 = self._versions.write(version, self.state, credited, changes)
        self.version, self.next_version, self._merging = version, version + 1, False
        self._changed_rows.clear()
        if self._max_bases < 2:  # only one base fits in memory, and `begin_version` will keep the newest
            self._bases.clear()
        return self._sha256

    @property
    def file_bytes(self) -> int:
        """Bytes of the newest version's file, which may hold only the changed rows of array fields."""
        return self._versions.path(self.version).stat().st_size

    @property
    def whole_file(self) -> tuple[Path, str] | None:
        """The newest version's file and its SHA-256, None if the file may hold only part of the version."""
        if self._sha256 is None or self._has_rows:
            return None
        return self._versions.path(self.version), self._sha256

    def drop(self, version: int) -> None:
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
        """Return the values that a worker at version `have` lacks.

        For `touched` vertices these are the rows and tensors that changed after `have`; for `fresh` vertices, all
        values. But a worker already has the modules in `copied` as of version `copies`, so of a fresh module in
        `copied` it lacks only the tensors that changed after `copies`.
        """
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
        return {name: tensor for name, tensor in tensors.items() if self._unchanged_since.get(name, vertex) > since}
