"""The rows of local vertices that payloads carried which workers may have kept, in bounded memory and on disk.

Rows that the master forgets are sent again. A worker names what its cache holds whenever it asks for work
(`gridml.caching.chunk_cache`), and a chunk borrows from nothing else. If a payload is gone or damaged when the chunk
is begun, the worker cannot begin it; it no longer names that payload when it asks again.

The same is kept on disk for the next master of the run. A file holds the ids of the rows of one payload, in their
order, and which fields came with them. It is named by the payload's SHA-256 and its own, so that one which a power
cut left torn is not believed. None is needed: where one is missing, or cannot be written, rows are sent again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.model.chunk import OWN, Borrowed, Chunk, lasting_fields
from gridml.model.graph import Graph
from gridml.model.order import Ids
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS

Fields = Mapping[str, tuple[str, ...]]  # of each type the fields that its rows came with, in order of their names

_FILE = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.rows")


class CarriedFiles:
    """The files in `folder`, which is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, sha256: str, ids: Mapping[str, Ids], fields: Fields) -> None:
        """Keep the ids (n,) of the rows of each type that a payload carries. A disk that is full is no error."""
        tensors = {f"ids/{name}": bundle.narrowed(rows) for name, rows in ids.items()}
        content = bundle.encode({"fields": {name: list(names) for name, names in fields.items()}}, tensors)
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(self._folder / f"{sha256}-{bundle.digest(content)}.rows", content, durable=False)

    def read(self) -> Iterator[tuple[str, dict[str, Ids], Fields]]:
        """Yield (SHA-256 of the payload, ids, fields) of each file, the oldest first. Removes those that are torn."""
        for path in self._paths():
            name = _FILE.fullmatch(path.name)
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if name is None or bundle.digest(content) != name[2]:
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            message, tensors = bundle.decode(content)
            ids = {key.removeprefix("ids/"): rows.astype(np.int64) for key, rows in tensors.items()}
            yield name[1], ids, {key: tuple(names) for key, names in message["fields"].items()}

    def remove(self, sha256: str) -> None:
        """Forget a payload, if it is known at all."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{sha256}-*.rows"):
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # there is no folder before the first payload
            return [path for _, _, path in sorted(map(_age, self._folder.iterdir()))]
        return []


def _age(path: Path) -> tuple[int, str, Path]:
    try:
        return os.stat(path).st_mtime_ns, path.name, path
    except OSError:
        return 0, path.name, path


MIN_BORROWED_ROWS = 16  # rows for which a payload is opened


@dataclass(frozen=True)
class Carried:
    """What a payload carries of one table: the ids of its own rows, ascending, and where each stands among them."""

    sha256: str
    ids: NDArray[np.int64]
    at: NDArray[np.int32]

    @staticmethod
    def of(sha256: str, ids: Ids) -> Carried:
        """Return what a payload carries whose own rows are `ids` (n,), in their order."""
        at = np.argsort(ids, kind="stable")
        return Carried(sha256, ids[at], at.astype(np.int32))

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.at.nbytes


def borrow(ids: Ids, cached: Sequence[Carried]) -> tuple[Borrowed | None, str]:
    """Return which rows of a chunk's table `ids` (n,) come from which of the payloads that its worker has, the newest
    first, and why; None where that is not worth opening one."""
    source, at = np.full(len(ids), OWN, np.int16), np.zeros(len(ids), np.int32)
    payloads: list[str] = []
    missing = np.argsort(ids, kind="stable")  # looked for in order, which takes a third of the time
    wanted = ids[missing]
    for carried in cached:
        if not len(missing):
            break
        if not len(carried.ids):
            continue
        place = np.minimum(np.searchsorted(carried.ids, wanted), len(carried.ids) - 1)
        has = carried.ids[place] == wanted
        if np.count_nonzero(has) < min(MIN_BORROWED_ROWS, len(ids)):
            continue
        source[missing[has]], at[missing[has]] = len(payloads), carried.at[place[has]]
        payloads.append(carried.sha256)
        missing, wanted = missing[~has], wanted[~has]
    borrowed = int((source != OWN).sum())
    if not borrowed:
        return None, "the worker has none of its rows"
    return Borrowed(tuple(payloads), source, at), f"the worker has {borrowed:,} of {len(ids):,} rows"


MAX_BYTES = 64 << 20  # of ids and their places: five million rows


class CarriedPayloads:
    """The rows of payloads of `graph`, by the digits that workers name these with."""

    def __init__(self, graph: Graph, files: CarriedFiles, max_bytes: int = MAX_BYTES) -> None:
        self._graph = graph
        self._files = files
        self._read = False
        self._most = max_bytes
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
