"""A worker's cache of chunk payloads in a folder, so that their rows need not be sent again.

A payload is a file named by its SHA-256. A process verifies the SHA-256 when it first opens the file, and again when
the file has changed. A damaged file is removed, and its rows are sent again. The folder can outlive the worker, and
several workers on one machine can share it. `master.caching.known_payloads` tracks which rows the payloads hold.

A chunk can borrow rows: instead of carrying the rows itself, it names cached payloads that hold these rows.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np

from gridml.model.chunk import Chunk, ChunkTable
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS, MAX_CACHED
from gridml.protocol.payload import Pieces

_Signature = tuple[int, int, int]  # inode, size and mtime; a different one means that the file has changed
_FILE = re.compile(r"([0-9a-f]{64})\.chunk")


@final
class ChunkCache:
    """The payloads in `folder`, at most `max_bytes` in all. `clock` returns seconds since 1970, like mtimes.

    Raises OSError if the folder cannot be created.
    """

    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._most = max_bytes
        self._clock = clock
        self._began_s = clock()  # payloads used since this time are never evicted
        self._opened: dict[str, tuple[Chunk, _Signature]] = {}  # verified payloads, by SHA-256
        self._bad: set[str] = set()  # damaged payloads: `names` omits them even if they could not be removed

    def names(self) -> tuple[str, ...]:
        """Return the first digits of each payload's SHA-256 for `Sync.cached`, the most recently used payload first."""
        kept = sorted(((used_s, sha) for sha, (_, used_s) in self._files().items()), reverse=True)
        return tuple(sha[:CACHED_DIGITS] for _, sha in kept if sha not in self._bad)[:MAX_CACHED]

    def with_borrowed_rows(self, chunk: Chunk) -> Chunk:
        """Return a chunk with its borrowed rows filled in. Raises ValueError if a payload that it names is gone or
        damaged."""
        tables = dict(chunk.tables)
        for name, table in chunk.tables.items():
            if table.borrowed is not None:
                tables[name] = _with_borrowed(table, [self._open(sha256) for sha256 in table.borrowed.payloads])
        return replace(chunk, tables=tables)

    def put(self, sha256: str, payload: bytes | bytearray, chunk: Chunk) -> None:
        """Add a chunk's payload, if the chunk carries rows and the payload fits. A full disk is no error."""
        if not any(table.carries for table in chunk.tables.values()) or not self._room(len(payload)):
            return
        with contextlib.suppress(OSError):
            bundle.write_atomic(self._folder / f"{sha256}.chunk", Pieces([payload]), durable=False)

    def _open(self, sha256: str) -> Chunk:
        """Return the chunk of a cached payload, mapped from its file."""
        path = self._folder / f"{sha256}.chunk"
        try:
            if sha256 in self._opened and self._opened[sha256][1] == _signature(path):
                return self._opened[sha256][0]
            payload = np.memmap(path, np.uint8, "r").data
            if bundle.digest(payload) != sha256:
                raise ValueError("its SHA-256 differs")
            chunk = Chunk.opened(payload)
            with contextlib.suppress(OSError):  # the folder may be read-only
                os.utime(path)
            with contextlib.suppress(OSError):  # the mapping stays valid if another worker has just removed the file
                self._opened[sha256] = chunk, _signature(path)
        except FileNotFoundError as error:  # another worker has evicted the payload, which can come back
            raise ValueError(f"the cached payload {sha256} is gone") from error
        except (OSError, ValueError) as error:
            self._bad.add(sha256)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise ValueError(f"the cached payload {sha256} cannot be read: {error}") from error
        return chunk

    def _room(self, nbytes: int) -> bool:
        """Evict payloads for a new one, and return whether it fits."""
        # Only payloads that were last used before this process began are evicted. Rows are needed once per epoch, in a
        # fixed order, so evicting the least recently used payload would drop rows just before they are needed.
        files = self._files()
        total = sum(size for size, _ in files.values())
        for sha256, (size, used_s) in sorted(files.items(), key=lambda item: item[1][1]):
            if total + nbytes <= self._most or used_s >= self._began_s:
                break
            (self._folder / f"{sha256}.chunk").unlink(missing_ok=True)
            total -= size
        return total + nbytes <= self._most

    def _files(self) -> dict[str, tuple[int, float]]:
        """Return (bytes, time of last use) of each payload."""
        files = {}
        for path in self._folder.iterdir():
            if name := _FILE.fullmatch(path.name):
                try:
                    facts = path.stat()
                except FileNotFoundError:
                    continue  # evicted by another worker
                files[name[1]] = facts.st_size, facts.st_mtime
        return files


def _signature(path: Path) -> _Signature:
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _with_borrowed(table: ChunkTable, chunks: Sequence[Chunk]) -> ChunkTable:
    """Return a table with all its rows: its own rows, and the rows that it borrows from `chunks`, the cached payloads.

    Raises ValueError if the cached payloads lack a borrowed row.
    """
    assert table.borrowed is not None
    from_each = [np.flatnonzero(table.borrowed.source == number) for number in range(len(chunks))]
    try:
        order = np.empty(len(table.ids), np.int64)
        order[np.concatenate([np.flatnonzero(table.borrowed.own), *from_each])] = np.arange(len(order))
        lenders = [chunk.tables[table.type] for chunk in chunks]
        lent = [(each, table.borrowed.at[rows].astype(np.int64)) for each, rows in zip(lenders, from_each, strict=True)]
        if not all({*table.lasting} <= {*lender.lasting} for lender in lenders):
            raise KeyError("fields that f changes")
        fields = dict(table.fields)
        for name in table.lasting:
            columns = [np.asarray(lender.fields[name][at]) for lender, at in lent]
            fields[name] = np.concatenate([fields[name], *columns])[order]
        ragged = {
            name: column.then(*(lender.ragged[name].take(at) for lender, at in lent)).take(order)
            for name, column in table.ragged.items()
        }
    except (KeyError, IndexError) as error:
        raise ValueError(f"a chunk borrows rows that no payload has: {error}") from error
    return replace(table, fields=fields, ragged=ragged, borrowed=None)
