"""The rows of one replicated type that a worker has, as the master has them: what it need not be sent again.

A row stays when the chunk that brought it ends. The master knows which rows a worker has, and as of which version
(`master.known_rows`), so a chunk that touches a row again is sent it only if it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.model.vertex import array
from gridml.protocol.push import RowValues

Array = NDArray[Any]
Ids = NDArray[np.int64]
_ABSENT = -1


@final
class RowCache:
    """Rows by id, in slots: finding one costs the same however many there are. `arrays` are the type's fields."""

    def __init__(self, arrays: Mapping[str, array]) -> None:
        self._arrays = arrays
        self.clear()

    def clear(self) -> None:
        """Have no rows."""
        self._slots: NDArray[np.int32] = np.empty(0, np.int32)  # by id
        self._fields = {name: np.empty((0, *one.shape), one.dtype) for name, one in self._arrays.items()}
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def values(self, ids: Ids) -> dict[str, Array]:
        """Return the fields of some rows, in copies of shape (n, *shape); zeros for those that are not here."""
        found = self._found(ids)
        absent = found == _ABSENT
        if not absent.any():
            return {name: column[found] for name, column in self._fields.items()}
        here = found[~absent]
        values = {name: np.zeros((len(ids), *one.shape), one.dtype) for name, one in self._arrays.items()}
        for name, column in self._fields.items():
            values[name][~absent] = column[here]
        return values

    def take(self, rows: RowValues) -> None:
        """Have these rows as they are given, each id once."""
        slots = self._made(rows.ids)
        for name, values in rows.fields.items():
            self._fields[name][slots] = values

    def keep(self, ids: Ids) -> None:
        """Have no rows but these."""
        kept = RowValues(ids, self.values(ids))
        self.clear()
        self.take(kept)

    def _found(self, ids: Ids) -> NDArray[np.int32]:
        if not len(ids) or int(ids.max()) < len(self._slots):
            return self._slots[ids]
        slots = np.full(len(ids), _ABSENT, np.int32)
        inside = ids < len(self._slots)
        slots[inside] = self._slots[ids[inside]]
        return slots

    def _made(self, ids: Ids) -> NDArray[np.int32]:
        """Return the slots of rows; those that had none get one."""
        highest = int(ids.max(initial=-1))
        if highest >= len(self._slots):
            more = np.full(max(highest + 1, 3 * len(self._slots) // 2) - len(self._slots), _ABSENT, np.int32)
            self._slots = np.concatenate([self._slots, more])
        slots = self._slots[ids]
        new = np.flatnonzero(slots == _ABSENT)
        if len(new):
            slots[new] = np.arange(self._used, self._used + len(new), dtype=np.int32)
            self._slots[ids[new]] = slots[new]
            self._used += len(new)
            self._grow()
        return slots

    def _grow(self) -> None:
        for name, column in self._fields.items():
            if len(column) < self._used:
                larger = np.zeros((max(self._used, 3 * len(column) // 2), *column.shape[1:]), column.dtype)
                larger[: len(column)] = column
                self._fields[name] = larger
