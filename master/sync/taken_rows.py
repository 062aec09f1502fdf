"""Which rows of a push the master has, once it is merged, just as they were pushed: they need not travel back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.protocol.push import RowValues
from master.known_rows import Touched
from master.sync.draft import Draft

Array = NDArray[Any]
_NONE: NDArray[np.int64] = np.empty(0, np.int64)


def taken_rows(pushed: Mapping[str, RowValues], merged: Mapping[str, RowValues]) -> tuple[Touched, Touched]:
    """Return (the rows of a push that were merged; those of them that the master took as they were), ids ascending."""
    ids = {type_name: np.sort(rows.ids) for type_name, rows in merged.items()}
    alike = {type_name: np.sort(rows.ids[_alike(rows, pushed[type_name])]) for type_name, rows in merged.items()}
    return ids, alike


def leave_last(drafts: Sequence[Draft]) -> None:
    """Of several pushes merged one after the other into one version, leave each only the rows that none after it
    changed."""
    for type_name in {type_name for draft in drafts for type_name in draft.pushed}:
        pushed = [draft.pushed.get(type_name, _NONE) for draft in drafts]
        last = np.empty(max(int(ids.max(initial=-1)) for ids in pushed) + 1, np.int32)  # of each row, the push
        for number, ids in enumerate(pushed):
            last[ids] = number
        for number, draft in enumerate(drafts):
            ids = draft.as_pushed.get(type_name, _NONE)
            draft.as_pushed = {**draft.as_pushed, type_name: ids[last[ids] == number]}


def _alike(merged: RowValues, pushed: RowValues) -> NDArray[np.bool_]:
    """Which rows are the same to the bit, in every field."""
    alike = np.ones(len(merged.ids), np.bool_)
    for name, values in merged.fields.items():
        alike &= (_bytes(values) == _bytes(pushed.fields[name])).all(1)
    return alike


def _bytes(rows: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8) if rows.size else np.empty((len(rows), 0))
