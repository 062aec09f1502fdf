"""Which rows the chunks carried that workers may have kept: as many of them as a bounded memory remembers.

What is forgotten is sent again. A new master reads what the last one remembered (carried_files.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gridml.model.borrowed import Borrowed
from gridml.model.chunk import Chunk, lasting_fields
from gridml.model.graph import Graph
from gridml.protocol.messages import CACHED_DIGITS
from master.decisions.cached_rows import Carried, borrow
from master.leases.carried_files import CarriedFiles

Ids = NDArray[np.int64]

MOST_BYTES = 64 << 20  # of ids and their places: five million rows


class CarriedPayloads:
    """The rows of payloads of `graph`, by the digits that workers name these with."""

    def __init__(self, graph: Graph, files: CarriedFiles, most_bytes: int = MOST_BYTES) -> None:
        self._graph = graph
        self._files = files
        self._read = False
        self._most = most_bytes
        self._payloads: OrderedDict[str, Mapping[str, Carried]] = OrderedDict()
        self._nbytes = 0

    def add(self, sha256: str, chunk: Chunk) -> None:
        """Remember what the payload of a chunk carries."""
        carrying = [table for name, table in chunk.tables.items() if name == table.type and table.carries]
        if not carrying:
            return
        self._recall()
        ids = {table.type: table.carried for table in carrying}
        self._files.write(sha256, ids, {name: self._fields(name) for name in ids})
        self._remember(sha256, ids)

    def borrow(self, type_name: str, ids: Ids, cached: Sequence[str]) -> tuple[Borrowed | None, str]:
        """Return which of the rows `ids` of a type a worker has that keeps the payloads `cached`, and why."""
        self._recall()
        kept = (self._payloads.get(digits) for digits in cached)
        return borrow(ids, [tables[type_name] for tables in kept if tables is not None and type_name in tables])

    def _recall(self) -> None:
        """Read what an earlier master remembered; once, and only where a worker keeps anything."""
        if self._read:
            return
        self._read = True
        for sha256, ids, fields in self._files.read():
            if all(name in self._graph.tables and names == self._fields(name) for name, names in fields.items()):
                self._remember(sha256, ids)
            else:  # the program names rows of a file now that it gave as arrays then, or the other way round
                self._files.remove(sha256)

    def _fields(self, type_name: str) -> tuple[str, ...]:
        """What comes with a row of a type."""
        table = self._graph.tables[type_name]
        return tuple(sorted([*lasting_fields(table), *table.ragged]))

    def _remember(self, sha256: str, ids: Mapping[str, Ids]) -> None:
        tables = {name: Carried.of(sha256, rows) for name, rows in ids.items()}
        self._forget(sha256[:CACHED_DIGITS])
        self._payloads[sha256[:CACHED_DIGITS]] = tables
        self._nbytes += _nbytes(tables)
        while self._nbytes > self._most:
            digits, oldest = next(iter(self._payloads.items()))
            self._files.remove(next(iter(oldest.values())).sha256)  # all tables of a payload have its
            self._forget(digits)

    def _forget(self, digits: str) -> None:
        tables = self._payloads.pop(digits, None)
        if tables is not None:
            self._nbytes -= _nbytes(tables)


def _nbytes(tables: Mapping[str, Carried]) -> int:
    return sum(carried.nbytes for carried in tables.values())
