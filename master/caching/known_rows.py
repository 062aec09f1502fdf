"""What workers are known to have: rows of the replica, and rows of local vertices in chunk payloads.

A worker keeps the rows of its chunks (`gridml.caching.master_copy`), so a reply omits the rows that it has. The rows of
a reply count as known, in the version of the reply, once the worker's next message acknowledges it. Rows that the
master merged exactly as they were pushed are not sent back either.

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
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.model.chunk import OWN, Borrowed, Chunk, lasting_fields
from gridml.model.graph import Graph
from gridml.model.order import Ids, Touched, places
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS
from gridml.protocol.push import RowValues

Array = NDArray[Any]

MAX_WORKER_BYTES = 1 << 29  # approximate bytes of the rows that a worker keeps
MAX_KNOWN_BYTES = 1 << 28  # bytes of the master's records of those rows, for all workers together
PUSHED = -1  # in place of a lease: rows that the worker has pushed and gets back, whatever it trains
UNKNOWN = -1  # the version of a row that a worker lacks; lower than the version of any change
_NONE: Ids = np.empty(0, np.int64)


class _Rows(NamedTuple):
    """The known rows of one type."""

    ids: Ids  # int64 (n,), ascending
    versions: NDArray[np.int32]  # (n,)


@final
class KnownRows:
    """Rows by type, and the version of each. A missing entry is safe, because unknown rows are sent."""

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}

    def clear(self) -> None:
        self._rows.clear()

    @property
    def nbytes(self) -> int:
        return sum(rows.ids.nbytes + rows.versions.nbytes for rows in self._rows.values())

    def counts(self) -> dict[str, int]:
        """Return the number of known rows of each type."""
        return {type_name: len(rows.ids) for type_name, rows in self._rows.items()}

    def add(self, rows: Touched, version: int) -> None:
        """Record that the worker has these rows in `version`; their ids ascend."""
        for type_name, ids in rows.items():
            known = self._rows.get(type_name)
            if known is None:
                self._rows[type_name] = _Rows(ids, np.full(len(ids), version, np.int32))
                continue
            at, here = places(known.ids, ids)
            known.versions[at[here]] = version
            new = ~here
            if new.any():
                self._rows[type_name] = _Rows(
                    np.insert(known.ids, at[new], ids[new]), np.insert(known.versions, at[new], version)
                )

    def drop(self, rows: Touched) -> None:
        """Record that the worker lacks these rows, or has them in a state that the master does not know."""
        for type_name, ids in rows.items():
            known = self._rows.get(type_name)
            if known is not None:
                at, here = places(known.ids, ids)
                known.versions[at[here]] = UNKNOWN

    def versions(self, type_name: str, ids: Ids) -> NDArray[np.int32]:
        """Return the version in which the worker has each of `ids`, int32 (n,); `UNKNOWN` for rows that it lacks."""
        versions, known = np.full(len(ids), UNKNOWN, np.int32), self._rows.get(type_name)
        if known is not None:
            at, here = places(known.ids, ids)
            versions[here] = known.versions[at[here]]
        return versions

    def lacking(self, type_name: str, ids: Ids, changed: Ids) -> Ids:
        """Return those of `ids` that are missing or outdated at the worker. `changed`, int64 (count,), is the version
        in which each row of the type last changed."""
        if type_name not in self._rows:
            return ids
        lacking: Ids = ids[changed[ids] > self.versions(type_name, ids)]
        return lacking


class LeaseRows(NamedTuple):
    """The rows that a lease is trained with."""

    lease: int
    touched: Touched


@final
@dataclass(slots=True)
class RowsHeld:
    """The rows of one worker. Mutated only by `acknowledge`, `clear` and `master.sync.rows`."""

    answer: str = ""  # identifier of the last reply, as in `Reply.answer`
    known: KnownRows = field(default_factory=KnownRows)  # rows of acknowledged replies
    answered: list[LeaseRows] = field(default_factory=list)  # rows of the last reply, not acknowledged yet
    version: int = UNKNOWN  # version of the rows in `answered`
    promised: dict[int, int] = field(default_factory=dict)  # by lease: up to this position it can be trained

    def clear(self) -> None:
        """Forget everything, because the worker may have lost its rows."""
        self.known.clear()
        self.answered.clear()

    def acknowledge(
        self,
        heard: bool,
        named: Container[int],
        as_pushed: Touched,
        version: int,
        pushed: Touched = MappingProxyType({}),
        exact: Container[str] = (),
    ) -> None:
        """Handle the worker's next message. `heard` says that it acknowledges the last reply. If so, the worker has the
        reply's rows of the leases `named` in the message, and the pushed rows that `version` took unchanged
        (`as_pushed`). Its other pushed rows are outdated, so they count as missing.

        Of the types in `exact`, changes of known rows are sent. So a row whose state at the worker is in doubt is
        dropped: rows of leases that it does not name, and the rows that it `pushed`."""
        if not heard:  # also if this message is a duplicate that was answered before
            self.clear()
        for lease in self.answered:
            if lease.lease in named or lease.lease == PUSHED:
                self.known.add(lease.touched, self.version)
            else:
                self.known.drop({name: ids for name, ids in lease.touched.items() if name in exact})
        self.known.drop({name: ids for name, ids in pushed.items() if name in exact})
        self.answered.clear()
        if heard:
            self.known.add(as_pushed, version)

    def is_too_much(self, row_bytes: Mapping[str, int], live: int) -> bool:
        """Return whether the rows exceed the memory of a worker, or their records here the share of one of `live`
        workers; `row_bytes` is the size of a row by type."""
        nbytes = sum(count * row_bytes[name] for name, count in self.known.counts().items())
        return nbytes > MAX_WORKER_BYTES or self.known.nbytes > MAX_KNOWN_BYTES // max(1, live)


def taken_rows(pushed: Mapping[str, RowValues], merged: Mapping[str, RowValues]) -> tuple[Touched, Touched]:
    """Return (the merged rows of a push, the rows among them that the master took unchanged), ids ascending."""
    ids = {type_name: np.sort(rows.ids) for type_name, rows in merged.items()}
    alike = {type_name: np.sort(rows.ids[_alike(rows, pushed[type_name])]) for type_name, rows in merged.items()}
    return ids, alike


def keep_latest_writes(pushed: Sequence[Touched], as_pushed: Sequence[Touched]) -> list[Touched]:
    """Return, for each push, its rows `as_pushed` that no later push changed. The pushes were merged into one version,
    in this order."""
    kept: list[dict[str, Ids]] = [{} for _ in pushed]
    for type_name in {type_name for rows in pushed for type_name in rows}:
        changed = [rows.get(type_name, _NONE) for rows in pushed]
        last = np.empty(max(int(ids.max(initial=-1)) for ids in changed) + 1, np.int32)  # by row: its last push
        for number, ids in enumerate(changed):
            last[ids] = number
        for number, rows in enumerate(as_pushed):
            ids = rows.get(type_name, _NONE)
            kept[number][type_name] = ids[last[ids] == number]
    return [*kept]


def _alike(merged: RowValues, pushed: RowValues) -> NDArray[np.bool_]:
    """Return a mask of the rows that are equal in every field, bit for bit."""
    alike = np.ones(len(merged.ids), np.bool_)
    for name, values in merged.fields.items():
        alike &= (_bytes(values) == _bytes(pushed.fields[name])).all(1)
    return alike


def _bytes(rows: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8) if rows.size else np.empty((len(rows), 0))


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
