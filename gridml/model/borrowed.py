"""Rows of a chunk that its worker still has from earlier ones, and that it need not be sent again.

A chunk then carries the fields that f does not change for its other rows only, its *own*; for each row of the table it
says which payload has it, and where among that payload's own rows. Payloads are called by their SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.model.ragged import Ragged

Array = NDArray[Any]
Ids = NDArray[np.int64]

OWN = -1  # as a row's source


@dataclass(frozen=True)
class Borrowed:
    """For each row of a table: `source` int16 (n,), the place in `payloads` of the one that has it, or OWN; `at` int32
    (n,), which of the own rows of that payload's table it is."""

    payloads: tuple[str, ...]
    source: NDArray[np.int16]
    at: NDArray[np.int32]

    @property
    def own(self) -> NDArray[np.bool_]:
        """Which rows the chunk itself carries, bool (n,)."""
        own: NDArray[np.bool_] = self.source == OWN
        return own


@dataclass(frozen=True)
class OwnRows:
    """The fields of the rows that one payload carries of a table, those that f does not change."""

    fields: Mapping[str, Array]
    ragged: Mapping[str, Ragged]


def completed(own: OwnRows, borrowed: Borrowed, payloads: Sequence[OwnRows]) -> OwnRows:
    """Return the fields of all rows, from the chunk's own and those of the `payloads` that it names.

    Raises ValueError where one has no such rows.
    """
    order = np.empty(len(borrowed.source), np.int64)
    order[borrowed.own] = np.arange(int(borrowed.own.sum()))
    parts, begin = [own], int(borrowed.own.sum())
    for number, payload in enumerate(payloads):
        mine = borrowed.source == number
        parts.append(_taken(payload, borrowed.at[mine].astype(np.int64)))
        order[mine] = begin + np.arange(int(mine.sum()))
        begin += int(mine.sum())
    try:
        fields = {name: np.concatenate([part.fields[name] for part in parts])[order] for name in own.fields}
        ragged = {name: _joined([part.ragged[name] for part in parts]).take(order) for name in own.ragged}
    except (KeyError, IndexError) as error:
        raise ValueError(f"a chunk borrows what no payload has: {error}") from error
    return OwnRows(fields, ragged)


def _taken(rows: OwnRows, at: Ids) -> OwnRows:
    try:
        fields = {name: np.asarray(column[at]) for name, column in rows.fields.items()}
        return OwnRows(fields, {name: column.take(at) for name, column in rows.ragged.items()})
    except IndexError as error:
        raise ValueError(f"a chunk borrows rows that a payload does not have: {error}") from error


def _joined(columns: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([[0], *(np.diff(column.offsets) for column in columns)])
    values = np.concatenate([column.values for column in columns])
    return replace(columns[0], values=values, offsets=np.cumsum(lengths).astype(np.int64))
