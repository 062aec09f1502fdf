"""The rows of array fields that each worker is known to have, and in which version.

A worker keeps the rows of its chunks (`gridml.caching.row_cache`), so a reply omits the rows that it has. The rows of a
reply count as known, in the version of the reply, once the worker's next message acknowledges it. Rows that the master
merged exactly as they were pushed are not sent back either.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.model.order import Ids, Touched, places
from gridml.protocol.push import RowValues

Array = NDArray[Any]

MAX_WORKER_BYTES = 1 << 29  # approximate bytes of the rows that a worker keeps
MAX_KNOWN_BYTES = 1 << 28  # bytes of the master's records of those rows, for all workers together
PUSHED = -1  # in place of a lease: rows that the worker has pushed and gets back, whatever it trains
UNKNOWN = -1  # the version of a row that a worker lacks; lower than the version of any change
_NONE: Ids = np.empty(0, np.int64)


class _Rows(NamedTuple):
    """The known rows of one type."""

    ids: Ids  # int64 (n,), ascending
    versions: NDArray[np.int32]  # (n,)


@final
class KnownRows:
    """Rows by type, and the version of each. A missing entry is safe, because unknown rows are sent."""

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}

    def clear(self) -> None:
        self._rows.clear()

    @property
    def nbytes(self) -> int:
        return sum(rows.ids.nbytes + rows.versions.nbytes for rows in self._rows.values())

    def counts(self) -> dict[str, int]:
        """Return the number of known rows of each type."""
        return {type_name: len(rows.ids) for type_name, rows in self._rows.items()}

    def add(self, rows: Touched, version: int) -> None:
        """Record that the worker has these rows in `version`; their ids ascend."""
        for type_name, ids in rows.items():
            known = self._rows.get(type_name)
            if known is None:
                self._rows[type_name] = _Rows(ids, np.full(len(ids), version, np.int32))
                continue
            at, here = places(known.ids, ids)
            known.versions[at[here]] = version
            new = ~here
            if new.any():
                self._rows[type_name] = _Rows(
                    np.insert(known.ids, at[new], ids[new]), np.insert(known.versions, at[new], version)
                )

    def drop(self, rows: Touched) -> None:
        """Record that the worker lacks these rows, or has them in a state that the master does not know."""
        for type_name, ids in rows.items():
            known = self._rows.get(type_name)
            if known is not None:
                at, here = places(known.ids, ids)
                known.versions[at[here]] = UNKNOWN

    def versions(self, type_name: str, ids: Ids) -> NDArray[np.int32]:
        """Return the version in which the worker has each of `ids`, int32 (n,); `UNKNOWN` for rows that it lacks."""
        versions, known = np.full(len(ids), UNKNOWN, np.int32), self._rows.get(type_name)
        if known is not None:
            at, here = places(known.ids, ids)
            versions[here] = known.versions[at[here]]
        return versions

    def lacking(self, type_name: str, ids: Ids, changed: Ids) -> Ids:
        """Return those of `ids` that are missing or outdated at the worker. `changed`, int64 (count,), is the version
        in which each row of the type last changed."""
        if type_name not in self._rows:
            return ids
        lacking: Ids = ids[changed[ids] > self.versions(type_name, ids)]
        return lacking


class LeaseRows(NamedTuple):
    """The rows that a lease is trained with."""

    lease: int
    touched: Touched


@final
@dataclass(slots=True)
class RowsHeld:
    """The rows of one worker. Mutated only by `acknowledge`, `clear` and `master.sync.rows`."""

    answer: str = ""  # identifier of the last reply, as in `Reply.answer`
    known: KnownRows = field(default_factory=KnownRows)  # rows of acknowledged replies
    answered: list[LeaseRows] = field(default_factory=list)  # rows of the last reply, not acknowledged yet
    version: int = UNKNOWN  # version of the rows in `answered`
    promised: dict[int, int] = field(default_factory=dict)  # by lease: up to this position it can be trained

    def clear(self) -> None:
        """Forget everything, because the worker may have lost its rows."""
        self.known.clear()
        self.answered.clear()

    def acknowledge(
        self,
        heard: bool,
        named: Container[int],
        as_pushed: Touched,
        version: int,
        pushed: Touched = MappingProxyType({}),
        exact: Container[str] = (),
    ) -> None:
        """Handle the worker's next message. `heard` says that it acknowledges the last reply. If so, the worker has the
        reply's rows of the leases `named` in the message, and the pushed rows that `version` took unchanged
        (`as_pushed`). Its other pushed rows are outdated, so they count as missing.

        Of the types in `exact`, changes of known rows are sent. So a row whose state at the worker is in doubt is
        dropped: rows of leases that it does not name, and the rows that it `pushed`."""
        if not heard:  # also if this message is a duplicate that was answered before
            self.clear()
        for lease in self.answered:
            if lease.lease in named or lease.lease == PUSHED:
                self.known.add(lease.touched, self.version)
            else:
                self.known.drop({name: ids for name, ids in lease.touched.items() if name in exact})
        self.known.drop({name: ids for name, ids in pushed.items() if name in exact})
        self.answered.clear()
        if heard:
            self.known.add(as_pushed, version)

    def is_too_much(self, row_bytes: Mapping[str, int], live: int) -> bool:
        """Return whether the rows exceed the memory of a worker, or their records here the share of one of `live`
        workers; `row_bytes` is the size of a row by type."""
        nbytes = sum(count * row_bytes[name] for name, count in self.known.counts().items())
        return nbytes > MAX_WORKER_BYTES or self.known.nbytes > MAX_KNOWN_BYTES // max(1, live)


def taken_rows(pushed: Mapping[str, RowValues], merged: Mapping[str, RowValues]) -> tuple[Touched, Touched]:
    """Return (the merged rows of a push, the rows among them that the master took unchanged), ids ascending."""
    ids = {type_name: np.sort(rows.ids) for type_name, rows in merged.items()}
    alike = {type_name: np.sort(rows.ids[_alike(rows, pushed[type_name])]) for type_name, rows in merged.items()}
    return ids, alike


def keep_latest_writes(pushed: Sequence[Touched], as_pushed: Sequence[Touched]) -> list[Touched]:
    """Return, for each push, its rows `as_pushed` that no later push changed. The pushes were merged into one version,
    in this order."""
    kept: list[dict[str, Ids]] = [{} for _ in pushed]
    for type_name in {type_name for rows in pushed for type_name in rows}:
        changed = [rows.get(type_name, _NONE) for rows in pushed]
        last = np.empty(max(int(ids.max(initial=-1)) for ids in changed) + 1, np.int32)  # by row: its last push
        for number, ids in enumerate(changed):
            last[ids] = number
        for number, rows in enumerate(as_pushed):
            ids = rows.get(type_name, _NONE)
            kept[number][type_name] = ids[last[ids] == number]
    return [*kept]


def _alike(merged: RowValues, pushed: RowValues) -> NDArray[np.bool_]:
    """Return a mask of the rows that are equal in every field, bit for bit."""
    alike = np.ones(len(merged.ids), np.bool_)
    for name, values in merged.fields.items():
        alike &= (_bytes(values) == _bytes(pushed.fields[name])).all(1)
    return alike


def _bytes(rows: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8) if rows.size else np.empty((len(rows), 0))
