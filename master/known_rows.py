"""Which rows of array fields a worker has, and of which version: what an answer need not bring it.

A worker keeps the rows of its chunks (`gridml.engine.row_cache`). What an answer says is of the version that it names:
rows that it brings, and rows that the worker is known to have as they are. It counts once the worker is heard again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.model.ids import Ids, places

Touched = Mapping[str, Ids]  # vertices by the name of their type
UNKNOWN = -1  # the version of a row that a worker lacks: every row has changed since


class _Rows(NamedTuple):
    """`ids` int64 (n,), ascending, and the version of each, int32 (n,)."""

    ids: Ids
    versions: NDArray[np.int32]


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

    def learn(self, rows: Touched, version: int) -> None:
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


@dataclass(slots=True)
class WorkerRows:
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
