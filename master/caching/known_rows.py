"""The rows of array fields that each worker is known to have, and in which version.

A worker keeps the rows of its chunks (`gridml.caching.row_cache`). A reply need not bring rows that it has. A reply
speaks of the version that it names: of rows that it brings, and of rows that the worker is known to have as they are.
It counts once the next message of the worker has come. Nor need rows of a push travel back that the master holds,
once it is merged, just as they were pushed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.model.order import Ids, Touched, places
from gridml.protocol.push import RowValues

Array = NDArray[Any]

MAX_WORKER_BYTES = 1 << 29  # of rows that a worker keeps, about
MAX_KNOWN_BYTES = 1 << 28  # that the master takes to know which those are, for all workers
UNKNOWN = -1  # the version of a row that a worker lacks: every row has changed since
_NONE: Ids = np.empty(0, np.int64)


class _Rows(NamedTuple):
    """`ids` int64 (n,), ascending, and the version of each, int32 (n,)."""

    ids: Ids
    versions: NDArray[np.int32]


@final
class KnownRows:
    """Rows by type, and the version of each. To know too little is safe: what is not known is sent."""

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}

    def clear(self) -> None:
        self._rows.clear()

    @property
    def nbytes(self) -> int:
        return sum(rows.ids.nbytes + rows.versions.nbytes for rows in self._rows.values())

    def counts(self) -> dict[str, int]:
        """How many rows of each type are known."""
        return {type_name: len(rows.ids) for type_name, rows in self._rows.items()}

    def add(self, rows: Touched, version: int) -> None:
        """The worker has these rows, ids ascending, as they are in `version`."""
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

    def lacking(self, type_name: str, ids: Ids, changed: Ids) -> Ids:
        """Return those of `ids` that the worker does not have as they are, given the version in which each row of the
        type changed last, int64 (count,)."""
        known = self._rows.get(type_name)
        if known is None:
            return ids
        at, here = places(known.ids, ids)
        versions = np.full(len(ids), UNKNOWN, np.int32)
        versions[here] = known.versions[at[here]]
        lacking: Ids = ids[changed[ids] > versions]
        return lacking


class LeaseRows(NamedTuple):
    """Rows that a lease is trained with."""

    lease: int
    touched: Touched


@final
@dataclass(slots=True)
class RowsHeld:
    """What a worker has: `known` rows, and, if it has heard the `answer`, those `answered`, in `version`. It may have
    trained each lease up to where it was `promised` rows for."""

    answer: str = ""
    known: KnownRows = field(default_factory=KnownRows)
    answered: list[LeaseRows] = field(default_factory=list)
    version: int = UNKNOWN
    promised: dict[int, int] = field(default_factory=dict)

    def clear(self) -> None:
        """It may have nothing."""
        self.known.clear()
        self.answered.clear()

    def acknowledge(self, heard: bool, named: Container[int], as_pushed: Touched, version: int) -> None:
        """Take the worker to have what the last answer brought of the leases that it has `named`, if it has `heard`
        that; and what it pushed and `version` took as it was. Other rows that it pushed have changed, so they count as
        lacking."""
        if not heard:  # nor is it where this message was answered before
            self.clear()
        for lease in self.answered:
            if lease.lease in named:
                self.known.add(lease.touched, self.version)
        self.answered.clear()
        if heard:
            self.known.add(as_pushed, version)

    def is_too_much(self, row_bytes: Mapping[str, int], live: int) -> bool:
        """Whether there is more than a worker should keep, a row of each type having so many bytes, or more than the
        master should know of each of `live` workers."""
        nbytes = sum(count * row_bytes[name] for name, count in self.known.counts().items())
        return nbytes > MAX_WORKER_BYTES or self.known.nbytes > MAX_KNOWN_BYTES // max(1, live)


def taken_rows(pushed: Mapping[str, RowValues], merged: Mapping[str, RowValues]) -> tuple[Touched, Touched]:
    """Return (the rows of a push that were merged; those of them that the master took as they were), ids ascending."""
    ids = {type_name: np.sort(rows.ids) for type_name, rows in merged.items()}
    alike = {type_name: np.sort(rows.ids[_alike(rows, pushed[type_name])]) for type_name, rows in merged.items()}
    return ids, alike


def keep_latest_writes(pushed: Sequence[Touched], as_pushed: Sequence[Touched]) -> list[Touched]:
    """Return of several pushes, merged one after the other into one version, the rows `as_pushed` that none after it
    changed."""
    kept: list[dict[str, Ids]] = [{} for _ in pushed]
    for type_name in {type_name for rows in pushed for type_name in rows}:
        changed = [rows.get(type_name, _NONE) for rows in pushed]
        last = np.empty(max(int(ids.max(initial=-1)) for ids in changed) + 1, np.int32)  # of each row, the push
        for number, ids in enumerate(changed):
            last[ids] = number
        for number, rows in enumerate(as_pushed):
            ids = rows.get(type_name, _NONE)
            kept[number][type_name] = ids[last[ids] == number]
    return [*kept]


def _alike(merged: RowValues, pushed: RowValues) -> NDArray[np.bool_]:
    """Which rows are the same to the bit, in every field."""
    alike = np.ones(len(merged.ids), np.bool_)
    for name, values in merged.fields.items():
        alike &= (_bytes(values) == _bytes(pushed.fields[name])).all(1)
    return alike


def _bytes(rows: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8) if rows.size else np.empty((len(rows), 0))
