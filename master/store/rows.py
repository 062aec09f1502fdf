"""Rows of array fields that lie in several places, one over the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gridml.model.ids import places
from gridml.protocol.push import Array, Ids, RowValues


def row_bytes(columns: Mapping[str, Array]) -> int:
    """Return the bytes of a row of these fields."""
    return sum(column[:1].nbytes for column in columns.values())


def fill(values: Mapping[str, Array], at: Ids, ids: Ids, records: Iterable[RowValues]) -> Ids:
    """Give the rows at the positions `at` of `ids` the values that the first record has of each; return the positions
    of those that are in none. The ids of a record ascend."""
    for record in records:
        if not len(at):
            break
        place, found = places(record.ids, ids[at])
        for name, column in values.items():
            column[at[found]] = record.fields[name][place[found]]
        at = at[~found]
    return at
