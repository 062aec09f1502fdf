"""Which rows the chunks carried that workers may have kept: as many of them as a bounded memory remembers.

What is forgotten is sent again, and a new master remembers nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gridml.model.borrowed import Borrowed
from gridml.model.chunk import Chunk
from gridml.protocol.messages import CACHED_DIGITS
from master.decisions.cached_rows import Carried, borrow

Ids = NDArray[np.int64]

MOST_BYTES = 64 << 20  # of ids and their places: five million rows


class CarriedPayloads:
    """The rows of payloads, by the digits that workers name these with."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._payloads: OrderedDict[str, Mapping[str, Carried]] = OrderedDict()
        self._nbytes = 0

    def add(self, sha256: str, chunk: Chunk) -> None:
        """Remember what the payload of a chunk carries."""
        tables = {
            name: Carried.of(sha256, table.carried)
            for name, table in chunk.tables.items()
            if name == table.type and table.carries
        }
        if not tables:
            return
        self._forget(sha256[:CACHED_DIGITS])
        self._payloads[sha256[:CACHED_DIGITS]] = tables
        self._nbytes += _nbytes(tables)
        while self._nbytes > self._most:
            self._forget(next(iter(self._payloads)))

    def borrow(self, type_name: str, ids: Ids, cached: Sequence[str]) -> tuple[Borrowed | None, str]:
        """Return which of the rows `ids` of a type a worker has that keeps the payloads `cached`, and why."""
        kept = (self._payloads.get(digits) for digits in cached)
        return borrow(ids, [tables[type_name] for tables in kept if tables is not None and type_name in tables])

    def _forget(self, digits: str) -> None:
        tables = self._payloads.pop(digits, None)
        if tables is not None:
            self._nbytes -= _nbytes(tables)


def _nbytes(tables: Mapping[str, Carried]) -> int:
    return sum(carried.nbytes for carried in tables.values())
