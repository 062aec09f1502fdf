"""What rows of array fields held before they were overwritten: older versions share the memory of the newest one.

A row that did not change since a version is what it is now; what another was is in the oldest record of it since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from gridml.aggregates import VertexState
from gridml.protocol.push import Array, Ids, ReplicaPart, RowValues, VertexKey
from master.store.rows import fill, row_bytes
from master.store.versions import ReplicaState, part_of

RECORD_BYTES = 1 << 10  # of a record itself, beside its arrays


@dataclass(frozen=True)
class _Record:
    """Rows of a type, as they were before the making of `version` overwrote them."""

    version: int
    type_name: str
    rows: RowValues

    @property
    def nbytes(self) -> int:
        return RECORD_BYTES + self.rows.ids.nbytes + sum(column.nbytes for column in self.rows.fields.values())

    def with_rows(self, others: RowValues) -> _Record:
        """Return this record with other rows, too."""
        ids = np.concatenate([self.rows.ids, others.ids])
        order = np.argsort(ids, kind="stable")
        fields = {
            name: np.concatenate([column, others.fields[name]])[order] for name, column in self.rows.fields.items()
        }
        return replace(self, rows=RowValues(ids[order], fields))


class OverwrittenRows:
    """Records of at most `most_bytes`. They reach back to version `reach`, and to no older one."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.reach = -1
        self.nbytes = 0
        self._records: list[_Record] = []

    def restart(self, version: int) -> None:
        """Forget all: this version is the newest one."""
        self._records.clear()
        self.reach, self.nbytes = version, 0

    def add(self, version: int, type_name: str, ids: Ids, columns: Mapping[str, Array]) -> None:
        """Keep what some rows hold, before the making of `version` overwrites them for the first time; `ids` ascend,
        and are kept. Where there is no room for that beside what came before, the reach becomes shorter."""
        if version <= self.reach:
            return
        if RECORD_BYTES + len(ids) * (ids.itemsize + row_bytes(columns)) > self.most_bytes:
            self.restart(version)
            return
        record = _Record(version, type_name, RowValues(ids, {name: column[ids] for name, column in columns.items()}))
        self._records.append(self._joined(record))
        self.nbytes += self._records[-1].nbytes
        if self.nbytes > self.most_bytes:
            self._shorten()

    def _joined(self, record: _Record) -> _Record:
        """Join a record with those of its version and type that have at most twice as many rows, which are taken out.
        Each that stays has more than twice as many rows as the next: there are few to look into then, however many
        pushes make a version and however much each brings, and rows are seldom moved."""
        at = len(self._records) - 1
        while at >= 0 and self._records[at].version == record.version:
            other = self._records[at]
            if other.type_name == record.type_name and len(other.rows.ids) <= 2 * len(record.rows.ids):
                self.nbytes -= self._records.pop(at).nbytes
                record = other.with_rows(record.rows)
            at -= 1
        return record

    def _shorten(self) -> None:
        """Drop the records of the oldest versions until there is room."""
        dropped = 0
        while self.nbytes > self.most_bytes:
            self.nbytes -= self._records[dropped].nbytes
            dropped += 1
        self.reach = self._records[dropped - 1].version
        while dropped < len(self._records) and self._records[dropped].version == self.reach:
            self.nbytes -= self._records[dropped].nbytes
            dropped += 1
        del self._records[:dropped]

    def since(self, version: int, type_name: str) -> Iterator[RowValues]:
        """Yield the records of a type that were made after a version, oldest first."""
        begin = bisect_right(self._records, version, key=attrgetter("version"))
        return (record.rows for record in self._records[begin:] if record.type_name == type_name)


@dataclass(frozen=True)
class OlderVersion:
    """A version on the memory of a newer `state`, for as long as the records reach back to it."""

    version: int
    modules: Mapping[VertexKey, VertexState]
    state: ReplicaState
    overwritten: OverwrittenRows

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of some rows as they were, in copies; none of a type of modules."""
        assert self.overwritten.reach <= self.version, "the replica did not change since the version was asked for"
        values = self.state.rows(type_name, ids)
        if values:
            later = np.flatnonzero(self.state.changed[type_name][ids] > self.version)
            left = fill(values, later, ids, self.overwritten.since(self.version, type_name))
            assert not len(left), "what changed was overwritten"
        return values

    def part(self, wanted: Mapping[str, Ids]) -> ReplicaPart:
        """Return the vertices `wanted`, ids by type, as they travel."""
        return part_of(self, wanted)
