"""A worker's cache of rows of replicated types: rows from the master, and rows of its own push under way.

`RowCache` holds the rows of one type as the master has them. A cached row outlives the chunk that brought it. The
master tracks which rows a worker has, and in which version (`master.caching.known_rows`), so it sends a row again only
after the row has changed.

`Rebasing` merges newer values of the master into a replica that the worker has trained further. The rule of each tensor
determines the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, rule_for
from gridml.aggregates.base import same_bits
from gridml.aggregates.sums import Add
from gridml.model.batch import Rows
from gridml.model.order import places
from gridml.model.vertex import VertexType, array
from gridml.protocol.changes import ChangedElements
from gridml.protocol.push import Changes, ReplicaPart, RowValues

Array = NDArray[Any]
Ids = NDArray[np.int64]
_ABSENT = -1


@final
class RowCache:
    """Rows by id, with lookup in constant time. Each field of the type has a column, and a slot is the place of a row
    in all columns. `arrays` are the declared fields of the type."""

    def __init__(self, arrays: Mapping[str, array]) -> None:
        self._arrays = arrays
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._slots: NDArray[np.int32] = np.empty(0, np.int32)  # by id; `_ABSENT` for a row that is not cached
        self._fields = {name: np.empty((0, *one.shape), one.dtype) for name, one in self._arrays.items()}
        self._used = 0  # number of used slots, from 0 without gaps; columns can have spare slots at the end

    def __len__(self) -> int:
        return self._used

    def values(self, ids: Ids) -> dict[str, Array]:
        """Return copies of the fields of some rows, each (n, *shape); zeros for rows that are not cached."""
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
        """Store rows. No id occurs twice in `rows`."""
        slots = self._made(rows.ids)
        for name, values in rows.fields.items():
            self._fields[name][slots] = values

    def keep(self, ids: Ids) -> None:
        """Drop all rows but those with these ids."""
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
        """Return the slots of rows, allocating missing ones."""
        highest = int(ids.max(initial=-1))
        if highest >= len(self._slots):
            # The array grows by at least half, so that adding n ids one by one copies O(n) entries in total.
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


@final
class Rebasing:
    """Rebases tensors of a program's replicated `types` by their rules."""

    def __init__(self, types: Mapping[str, VertexType]) -> None:
        self._types = types
        self._rules: dict[str, Aggregate] = {}  # by tensor name, filled on first use

    def merge_in(self, type_name: str, name: str, local: Array, newest: Array, pushed: Array | None, live: int) -> None:
        """Merge `newest` into `local` in place. If `pushed` is given, the rule of tensor `name` keeps the training
        since `pushed`; otherwise `newest` replaces `local`."""
        if pushed is None or _is_constant(local, pushed):
            np.copyto(local, newest)
            return
        self._rule(type_name, name, local).adopt(local, pushed, newest, local, live)

    def is_plain(self, type_name: str, name: str, values: Array) -> bool:
        """Return whether tensor `name` is rebased as newest + (local − pushed), which a device can compute itself."""
        return type(self._rule(type_name, name, values)).adopt is Aggregate.adopt

    def adds(self, type_name: str, name: str, values: Array) -> bool:
        """Return whether the rule of a field is `add`."""
        declared = self._types[type_name]
        return not declared.has_own_rule and isinstance(self._rule(type_name, f"{type_name}/{name}", values), Add)

    def _rule(self, type_name: str, name: str, values: Array) -> Aggregate:
        if name not in self._rules:
            self._rules[name] = rule_for(name, values, self._types[type_name].rule)
        return self._rules[name]


def _is_constant(local: Array, pushed: Array) -> bool:
    """Return whether a tensor has infinities, as a mask has, and is unchanged. A rule would compute inf - inf for such
    a tensor."""
    with np.errstate(all="ignore"):  # a finite sum proves that all elements are finite
        return local.dtype.kind == "f" and not np.isfinite(local.sum()) and same_bits(local, pushed)


@final
class ReplicatedRows:
    """Replicated rows by type: caches of the master's values, and the rows of the push under way."""

    def __init__(self, types: Mapping[str, VertexType], rebasing: Rebasing) -> None:
        self.caches = {n: RowCache(t.arrays) for n, t in types.items() if t.replicated and not t.modules}
        self.under_way: dict[str, RowValues] = {}  # rows of the push that has no reply yet, by type name
        self._rebasing = rebasing

    def values(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return copies of the rows that a chunk starts with: pushed values for rows of the push under way, the
        master's values for other rows, and zeros for rows that are not cached."""
        values = self.caches[type_name].values(ids)
        pushed = self.under_way.get(type_name)
        if pushed is not None and len(pushed.ids):
            at, here = places(ids, pushed.ids)
            for name, column in pushed.fields.items():
                values[name][at[here]] = column[here]
        return values

    def as_changes(self, pushed: Mapping[str, RowValues]) -> tuple[dict[str, RowValues], Changes]:
        """Return (the rows of a push without the fields of which only changed elements travel, these elements). They
        are fields with `add`, in which few elements differ from the master's values."""
        rows, changes = dict(pushed), {}
        for type_name, values in pushed.items():
            added = [n for n, column in values.fields.items() if self._rebasing.adds(type_name, n, column)]
            old = self.caches[type_name].values(values.ids) if added else {}
            found = {name: ChangedElements.of(old[name], values.fields[name]) for name in added}
            changes[type_name] = {name: each for name, each in found.items() if each is not None}
            left = {name: column for name, column in values.fields.items() if name not in changes[type_name]}
            rows[type_name] = RowValues(values.ids, left)
        return rows, {type_name: fields for type_name, fields in changes.items() if fields}

    def whole(self, part: ReplicaPart) -> ReplicaPart:
        """Return a part of a reply with whole rows in place of changed ones: changes of the rows that are cached now.
        Raises ValueError for changes that do not fit."""
        rows = dict(part.rows)
        for type_name, changed in part.changed.items():
            values = self.caches[type_name].values(changed.ids)
            if values.keys() != changed.changes.keys():
                raise ValueError(f"changes of {type_name} have {[*changed.changes]}; expected {[*values]}")
            for name, each in changed.changes.items():
                if problem := each.problem(len(changed.ids), values[name].shape[1:], values[name].dtype):
                    raise ValueError(f"{type_name}/{name} of a reply {problem}")
                values[name] = each.added_to(values[name])
            if (others := rows.get(type_name)) is not None:
                values = {name: np.concatenate([others.fields[name], column]) for name, column in values.items()}
            ids = changed.ids if others is None else np.concatenate([others.ids, changed.ids])
            rows[type_name] = RowValues(ids, values)
        return replace(part, rows=rows, changed={})

    def acknowledge_push(self) -> None:
        """Store the rows of the push, which the master has merged. The reply brings the rows whose merged values differ
        from the push."""
        for type_name, rows in self.under_way.items():
            self.caches[type_name].take(rows)
        self.under_way = {}

    def take(self, newest: Mapping[str, RowValues]) -> None:
        """Store rows of the master, for the next chunks."""
        for type_name, rows in newest.items():
            if type_name in self.caches:
                self.caches[type_name].take(rows)

    def take_into(self, table: Rows | None, type_name: str, newest: RowValues, live: int, *, keeps: bool) -> None:
        """Store rows of the master, and merge them into `table`, the rows of the chunk in training. With `keeps`, the
        training since the master's previous values is kept."""
        cache = self.caches.get(type_name)
        if cache is None:
            return  # f does not use this type
        if table is not None:
            at, here = places(table.ids, newest.ids)  # the other rows are for a later chunk
            at, ids = at[here], newest.ids[here]
            before = cache.values(ids)
            for name, values in newest.fields.items():
                column = table.fields[name]
                local = column[at]
                self._rebasing.merge_in(
                    type_name, f"{type_name}/{name}", local, values[here], before[name] if keeps else None, live
                )
                column[at] = local
        cache.take(newest)

    def keep(self, held: Mapping[str, Ids]) -> None:
        """Drop all rows of each type but those with the ids in `held`."""
        for type_name, cache in self.caches.items():
            cache.keep(held.get(type_name, np.empty(0, np.int64)))

    def forget(self) -> None:
        """Drop all rows, because the training based on them was refused."""
        self.under_way = {}
        for cache in self.caches.values():
            cache.clear()
