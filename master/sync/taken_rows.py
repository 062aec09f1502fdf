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


def taken_rows(pushed: Mapping[str, RowValues], merged: Mapping[str, RowValues]) -> tuple[Touched, Touched]:
    """Return (the rows of a push that were merged; those of them that the master took as they were), ids ascending."""
    ids = {type_name: np.sort(rows.ids) for type_name, rows in merged.items()}
    alike = {type_name: np.sort(rows.ids[_alike(rows, pushed[type_name])]) for type_name, rows in merged.items()}
    return ids, alike


def leave_last(drafts: Sequence[Draft]) -> None:
    """Of several pushes merged one after the other into one version, leave each only the rows that none after it
    changed."""
    later: dict[str, list[Array]] = {}
    for draft in reversed(drafts):
        if later:
            draft.as_pushed = {
                type_name: np.setdiff1d(ids, np.concatenate(later[type_name])) if type_name in later else ids
                for type_name, ids in draft.as_pushed.items()
            }
        for type_name, ids in draft.pushed.items():
            later.setdefault(type_name, []).append(ids)


def _alike(merged: RowValues, pushed: RowValues) -> NDArray[np.bool_]:
    """Which rows are the same to the bit, in every field."""
    alike = np.ones(len(merged.ids), np.bool_)
    for name, values in merged.fields.items():
        alike &= (_bytes(values) == _bytes(pushed.fields[name])).all(1)
    return alike


def _bytes(rows: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8) if rows.size else np.empty((len(rows), 0))
