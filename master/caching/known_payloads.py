"""Index of the rows of local vertices in chunk payloads that workers may have cached, in bounded memory and on disk.

A worker names the payloads in its cache whenever it asks for work (`gridml.caching.chunk_cache`). A chunk borrows rows
only from these payloads: it names their places there instead of carrying them. If such a payload is gone or damaged
when the worker begins the chunk, the worker asks again without naming it. Rows of payloads that the index has dropped
are sent again.

The index is also kept on disk for the next master of the run. A file holds the ids of the rows of one payload, in
order, and the fields that came with them. Its name contains the SHA-256 of the payload, and the SHA-256 of the file
itself, which detects a file torn by a power cut. No file is essential: if a file is missing or cannot be written, rows
are sent again.
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

Fields = Mapping[str, tuple[str, ...]]  # by type: the fields of its rows, sorted

_FILE = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.rows")


class CarriedFiles:
    """The index files in `folder`, which is created on the first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, sha256: str, ids: Mapping[str, Ids], fields: Fields) -> None:
        """Write the ids (n,) of the rows of each type in a payload. A full disk is no error."""
        tensors = {f"ids/{name}": bundle.narrowed(rows) for name, rows in ids.items()}
        content = bundle.encode({"fields": {name: list(names) for name, names in fields.items()}}, tensors)
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(self._folder / f"{sha256}-{bundle.digest(content)}.rows", content, durable=False)

    def read(self) -> Iterator[tuple[str, dict[str, Ids], Fields]]:
        """Yield (SHA-256 of the payload, ids, fields) of each file, oldest first. Removes torn files."""
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
        """Remove the file of a payload, if any."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{sha256}-*.rows"):
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # the folder does not exist before the first write
            return [path for _, _, path in sorted(map(_age, self._folder.iterdir()))]
        return []


def _age(path: Path) -> tuple[int, str, Path]:
    try:
        return os.stat(path).st_mtime_ns, path.name, path
    except OSError:
        return 0, path.name, path


MIN_BORROWED_ROWS = 16  # fewer rows are not worth opening a payload


@dataclass(frozen=True)
class Carried:
    """The rows of one table in a payload."""

    sha256: str  # SHA-256 of the payload
    ids: NDArray[np.int64]  # ascending
    at: NDArray[np.int32]  # position of each row in the payload

    @staticmethod
    def of(sha256: str, ids: Ids) -> Carried:
        """Return the rows of a payload that holds `ids` (n,) in this order."""
        at = np.argsort(ids, kind="stable")
        return Carried(sha256, ids[at], at.astype(np.int32))

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.at.nbytes


def borrow(ids: Ids, cached: Sequence[Carried]) -> tuple[Borrowed | None, str]:
    """Return (the rows of a chunk's table to borrow, the reason); None if no payload is worth opening.

    `ids` (n,) are the rows of the table, `cached` the payloads that the worker has, the newest first.
    """
    source, at = np.full(len(ids), OWN, np.int16), np.zeros(len(ids), np.int32)
    payloads: list[str] = []
    missing = np.argsort(ids, kind="stable")  # sorted, because ordered lookups take a third of the time
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


MAX_BYTES = 64 << 20  # bytes of ids and positions in memory: five million rows


class CarriedPayloads:
    """The index of payloads of `graph`, by the digits of their SHA-256 with which workers name them."""

    def __init__(self, graph: Graph, files: CarriedFiles, max_bytes: int = MAX_BYTES) -> None:
        self._graph = graph
        self._files = files
        self._read = False  # whether the files of earlier masters were read
        self._most = max_bytes
        self._payloads: OrderedDict[str, Mapping[str, Carried]] = OrderedDict()  # by digits, then table; oldest first
        self._nbytes = 0  # bytes of all `_payloads`

    def add(self, sha256: str, chunk: Chunk) -> None:
        """Add the payload of a chunk, if it carries rows."""
        carrying = [table for name, table in chunk.tables.items() if name == table.type and table.carries]
        if not carrying:
            return
        self._recall()
        ids = {table.type: table.carried for table in carrying}
        self._files.write(sha256, ids, {name: self._fields(name) for name in ids})
        self._remember(sha256, ids)

    def borrow(self, type_name: str, ids: Ids, cached: Sequence[str]) -> tuple[Borrowed | None, str]:
        """Return (the rows to borrow among `ids` of a type for a worker with the payloads `cached`, the reason)."""
        self._recall()
        kept = (self._payloads.get(digits) for digits in cached)
        return borrow(ids, [tables[type_name] for tables in kept if tables is not None and type_name in tables])

    def _recall(self) -> None:
        """Read the index of earlier masters, once, and only when it is first needed."""
        if self._read:
            return
        self._read = True
        for sha256, ids, fields in self._files.read():
            if all(name in self._graph.tables and names == self._fields(name) for name, names in fields.items()):
                self._remember(sha256, ids)
            else:  # the types or fields of the program have changed
                self._files.remove(sha256)

    def _fields(self, type_name: str) -> tuple[str, ...]:
        """Return the fields that are sent with a row of a type."""
        table = self._graph.tables[type_name]
        return tuple(sorted([*lasting_fields(table), *table.ragged]))

    def _remember(self, sha256: str, ids: Mapping[str, Ids]) -> None:
        tables = {name: Carried.of(sha256, rows) for name, rows in ids.items()}
        self._forget(sha256[:CACHED_DIGITS])
        self._payloads[sha256[:CACHED_DIGITS]] = tables
        self._nbytes += _nbytes(tables)
        while self._nbytes > self._most:
            digits, oldest = next(iter(self._payloads.items()))
            self._files.remove(next(iter(oldest.values())).sha256)  # all tables of a payload have the same SHA-256
            self._forget(digits)

    def _forget(self, digits: str) -> None:
        tables = self._payloads.pop(digits, None)
        if tables is not None:
            self._nbytes -= _nbytes(tables)


def _nbytes(tables: Mapping[str, Carried]) -> int:
    return sum(carried.nbytes for carried in tables.values())
