"""The rows of replicated types that a worker has, from the master and from its own push under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.engine.rebasing import Rebasing
from gridml.engine.row_cache import RowCache
from gridml.model.batch import Rows
from gridml.model.ids import places
from gridml.model.vertex import VertexType
from gridml.protocol.push import RowValues

Array = NDArray[Any]
Ids = NDArray[np.int64]


@final
class ReplicatedRows:
    """Rows by type: as the master has them, in caches, and those of a push without an answer."""

    def __init__(self, types: Mapping[str, VertexType], rebasing: Rebasing) -> None:
        self.caches = {n: RowCache(t.arrays) for n, t in types.items() if t.replicated and not t.modules}
        self.under_way: dict[str, RowValues] = {}
        self._rebasing = rebasing

    def values(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Rows to begin a chunk with, in copies: those under way as they were pushed, zeros where nobody has brought
        any yet."""
        values = self.caches[type_name].values(ids)
        pushed = self.under_way.get(type_name)
        if pushed is not None and len(pushed.ids):
            at, here = places(ids, pushed.ids)
            for name, column in pushed.fields.items():
                values[name][at[here]] = column[here]
        return values

    def settle(self) -> None:
        """The last push was merged: the master has its rows as they were pushed, but for those that it brings."""
        for type_name, rows in self.under_way.items():
            self.caches[type_name].take(rows)
        self.under_way = {}

    def take(self, newest: Mapping[str, RowValues]) -> None:
        """Have rows as the master has them, for the chunks that follow."""
        for type_name, rows in newest.items():
            if type_name in self.caches:
                self.caches[type_name].take(rows)

    def take_into(self, table: Rows | None, type_name: str, newest: RowValues, live: int, *, keeps: bool) -> None:
        """Take rows of a type as the master has them, into the `table` of the chunk in hand, too, if that has some;
        where it `keeps` what was trained, that is what differs from what the master had before."""
        cache = self.caches.get(type_name)
        if cache is None:
            return  # f knows nothing of such vertices
        if table is not None:
            at, here = places(table.ids, newest.ids)  # those not here are for a chunk that follows
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
        """Forget all rows but these ids of each type."""
        for type_name, cache in self.caches.items():
            cache.keep(held.get(type_name, np.empty(0, np.int64)))

    def forget(self) -> None:
        """Have no rows: what was trained from them is not wanted."""
        self.under_way = {}
        for cache in self.caches.values():
            cache.clear()
