"""Couriers, which carry one sync at a time, and the cache of chunk payloads.

A courier works on a thread, so that training goes on while a push travels, or step by step.

The cache keeps payloads of chunks in a folder, so that their rows need not be sent again. A payload is a file named
by its SHA-256, which is checked again when a process first opens it, and when the file has changed since: a damaged
one is removed, and its rows are sent again. The folder may outlive the worker and be shared by several on one
machine. Where it is full nothing more is kept, unless something in it has not been used since before this process:
rows come round once an epoch, and a cache that made room for the newest would lose each of them before its turn.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np

from gridml.carriers.base import WorkerMailbox
from gridml.model.chunk import Chunk, ChunkTable, OwnRows, completed
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS, MOST_CACHED, Reply, Sync, reply_from
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.payload import Arrived, Pieces
from gridml.protocol.push import PushContent, ReplicaPart, decode_replica

RESEND_S = 15.0  # a sync without a reply is sent again: the carrier may have lost it, and syncs are idempotent
FULL_DISK_S = 1.0  # how long to wait before a sync that could not be stored is tried again


class Courier(ABC):
    """Carries syncs and brings replies, one at a time: `post` only when the reply to the last one was taken."""

    unanswered: UnansweredPush | None = None  # the push under way, until its reply is here
    gone = False  # the mailbox does not exist any more: the master has given this worker up
    last_push_s = 0.0  # CPU seconds that carrying the last push and opening its answer cost
    last_travel_s = 0.0  # from sending the last push to its answer

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a sync is under way, or its reply not taken yet."""

    @abstractmethod
    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        """Send `sync` with what `content()` gives; that may be called on another thread."""

    @abstractmethod
    def take(self) -> tuple[Reply, ReplicaPart] | None:
        """The reply, if it has come; afterwards another sync may be posted. Never blocks."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Rest for `seconds`, or until there is a reply to take."""

    @abstractmethod
    def close(self) -> None:
        """Stop carrying. Idempotent."""


@final
class ThreadCourier(Courier):
    """Carries on a thread of its own, under real time. `take` raises what went wrong there."""

    def __init__(self, carrier: WorkerMailbox, number: int = 1) -> None:
        self._carrier = carrier
        self._process = secrets.token_hex(4)
        self._number = number  # of the next message
        self._outgoing: tuple[Sync, Callable[[], PushContent]] | None = None
        self._reply: tuple[Reply, ReplicaPart] | None = None
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._outgoing is not None or self._reply is not None

    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        with self._changed:
            assert not self.busy, "one sync at a time"
            self._outgoing = (sync, content)
            self._changed.notify_all()

    def take(self) -> tuple[Reply, ReplicaPart] | None:
        if self._error is not None:
            raise self._error
        if self._reply is None:
            return None  # without the lock: this is asked between any two batches
        with self._changed:
            reply, self._reply = self._reply, None
            return reply

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._reply is not None or self.gone, seconds)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outgoing is not None or self._closed)
                if self._outgoing is None:
                    return
            self._carry(*self._outgoing)
            if self.gone:
                return

    def _carry(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        """Carry one sync. Nothing of it is held afterwards: it and its answer are replicas' worth of memory."""
        reply = None
        try:
            reply = self._exchange(sync, content)
        except Exception as error:  # the worker's own thread would wait for ever
            self._error = error
        with self._changed:
            self._outgoing, self._reply = None, reply
            self.gone = reply is None
            self._changed.notify_all()

    def _exchange(self, sync: Sync, content: Callable[[], PushContent]) -> tuple[Reply, ReplicaPart] | None:
        """Send until there is a reply; None when there will be none."""
        began = time.thread_time()
        message = UnansweredPush(self._number, sync._replace(process=self._process), content())
        number, payload = message.number, message.payload
        self._number += 1
        self.unanswered = message if sync.push is not None else None
        sent_s = time.perf_counter()
        while not self._closed:
            try:
                self._carrier.send(number, payload)
            except FileNotFoundError:
                return None
            except OSError:  # a full disk: what was trained is kept in memory and sent when there is room again
                self._pause(FULL_DISK_S)
                continue
            try:
                answer = self._await(number)
            except FileNotFoundError:
                return None
            if answer is not None:
                if sync.push is not None:
                    self.last_push_s = time.thread_time() - began
                    self.last_travel_s = time.perf_counter() - sent_s
                self.unanswered = None
                return answer
        return None

    def _await(self, number: int) -> tuple[Reply, ReplicaPart] | None:
        waited, (step, longest) = 0.0, self._carrier.poll_s
        while waited < RESEND_S and not self._closed:
            payload = self._carrier.receive(number)
            if payload is not None and (answer := opened(payload, self._process, self._carrier)) is not None:
                return answer
            self._pause(step)
            waited += step
            step = min(longest, step * 1.5)
        return None

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)


@final
class StepCourier(Courier):
    """Carries when it is asked to, under a clock that is handed in: for simulations and tests, without a thread.

    Whoever drives it moves the clock; `wait` only looks whether a sync without a reply must be sent again.
    """

    def __init__(
        self, carrier: WorkerMailbox, clock: Callable[[], float], number: int = 1, process: str = "only"
    ) -> None:
        self._carrier = carrier
        self._process = process
        self._clock = clock
        self._number = number - 1  # of the last message
        self._payload: Pieces | None = None
        self._reply: tuple[Reply, ReplicaPart] | None = None
        self._posted_s = 0.0  # when the sync under way was posted,
        self._again_s = 0.0  # and when it is sent (again)

    @property
    def busy(self) -> bool:
        return self._payload is not None

    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        assert not self.busy, "one sync at a time"
        self._number += 1
        message = UnansweredPush(self._number, sync._replace(process=self._process), content())
        self._payload = message.payload
        self.unanswered = message if sync.push is not None else None
        self._posted_s = self._again_s = self._clock()
        self._send()

    def look(self) -> None:
        """Fetch the reply if it has come, however long it lies here before it is taken; else send again when due."""
        if self._payload is None or self._reply is not None:
            return
        try:
            payload = self._carrier.receive(self._number)
        except FileNotFoundError:
            self.gone = True
            return
        self._reply = None if payload is None else opened(payload, self._process, self._carrier)
        if self._reply is None:
            self._send()
        elif self.unanswered is not None:
            self.last_travel_s = self._clock() - self._posted_s

    def take(self) -> tuple[Reply, ReplicaPart] | None:
        self.look()
        reply, self._reply = self._reply, None
        if reply is not None:
            self._payload = self.unanswered = None
        return reply

    def wait(self, seconds: float) -> None:
        if self._payload is not None:
            self._send()

    def close(self) -> None:
        self._payload = None

    def _send(self) -> None:
        if self._payload is None or self._clock() < self._again_s:
            return
        try:
            self._carrier.send(self._number, self._payload)
            self._again_s = self._clock() + RESEND_S
        except FileNotFoundError:
            self.gone = True
        except OSError:
            self._again_s = self._clock() + FULL_DISK_S


def opened(payload: Arrived, process: str, carrier: WorkerMailbox) -> tuple[Reply, ReplicaPart] | None:
    """The reply in a payload and what travels beside it or is stored, None when it was meant for an earlier process of
    this worker, or what is stored cannot be had: who asks again gets another one.

    Raises ValueError when it is no reply.
    """
    message, tensors = bundle.opened(payload)
    reply = reply_from(message)
    if reply.process != process:
        return None
    if reply.stored is not None:
        try:
            _, stored = bundle.opened(carrier.view(reply.stored.name, reply.stored.sha256))
        except (OSError, ValueError):
            return None
        tensors |= {name: stored[name] for name in reply.stored.tensors}
    return reply, decode_replica(tensors)


_Signature = tuple[int, int, int]  # of a file: another one shows that it has changed
_FILE = re.compile(r"([0-9a-f]{64})\.chunk")


class ChunkCache:
    """The payloads in `folder`, of at most `most_bytes` together. `clock` gives seconds since 1970, as files have them.

    Raises OSError where the folder cannot be made.
    """

    def __init__(self, folder: Path, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._most = most_bytes
        self._clock = clock
        self._began_s = clock()
        self._opened: dict[str, tuple[Chunk, _Signature]] = {}
        self._bad: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Return what the master is told: the first digits of the payloads' SHA-256, the newest first."""
        kept = sorted(((used_s, sha) for sha, (_, used_s) in self._files().items()), reverse=True)
        return tuple(sha[:CACHED_DIGITS] for _, sha in kept if sha not in self._bad)[:MOST_CACHED]

    def completed(self, chunk: Chunk) -> Chunk:
        """Return a chunk with the rows that it borrows. Raises ValueError where a payload is gone or damaged."""
        tables = {name: self._completed(table) for name, table in chunk.tables.items()}
        return replace(chunk, tables=tables)

    def put(self, sha256: str, payload: bytes | bytearray, chunk: Chunk) -> None:
        """Keep the payload of a chunk that has rows of its own, if there is room. A full disk is no error."""
        if not any(table.carries for table in chunk.tables.values()) or not self._room(len(payload)):
            return
        try:
            bundle.write_atomic(self._folder / f"{sha256}.chunk", Pieces([payload]), durable=False)
        except OSError:
            return

    def _completed(self, table: ChunkTable) -> ChunkTable:
        if table.borrowed is None:
            return table
        chunks = [self._open(sha256) for sha256 in table.borrowed.payloads]
        if any(table.type not in chunk.tables for chunk in chunks):
            raise ValueError(f"the chunk borrows rows of {table.type} from a payload without them")
        rows = completed(_own(table), table.borrowed, [_own(chunk.tables[table.type]) for chunk in chunks])
        fields = {name: rows.fields.get(name, column) for name, column in table.fields.items()}
        return replace(table, fields=fields, ragged=rows.ragged, borrowed=None)

    def _open(self, sha256: str) -> Chunk:
        """Return the chunk of a kept payload, mapped."""
        path = self._folder / f"{sha256}.chunk"
        try:
            if sha256 in self._opened and self._opened[sha256][1] == _signature(path):
                return self._opened[sha256][0]
            payload = np.memmap(path, np.uint8, "r").data
            if bundle.digest(payload) != sha256:
                raise ValueError("its SHA-256 is another")
            chunk = Chunk.opened(payload)
            with contextlib.suppress(OSError):  # the folder may be read-only
                os.utime(path)
            with contextlib.suppress(OSError):  # what is mapped stays, though another worker has just removed the file
                self._opened[sha256] = chunk, _signature(path)
        except FileNotFoundError as error:  # another worker made room; it may come back
            raise ValueError(f"the kept payload {sha256} is gone") from error
        except (OSError, ValueError) as error:
            self._bad.add(sha256)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise ValueError(f"the kept payload {sha256} cannot be read: {error}") from error
        return chunk

    def _room(self, nbytes: int) -> bool:
        """Make room for a payload, if there is any to be made."""
        files = self._files()
        total = sum(size for size, _ in files.values())
        for sha256, (size, used_s) in sorted(files.items(), key=lambda item: item[1][1]):
            if total + nbytes <= self._most or used_s >= self._began_s:
                break
            (self._folder / f"{sha256}.chunk").unlink(missing_ok=True)
            total -= size
        return total + nbytes <= self._most

    def _files(self) -> dict[str, tuple[int, float]]:
        """(bytes, when it was last used) of each payload."""
        files = {}
        for path in self._folder.iterdir():
            if name := _FILE.fullmatch(path.name):
                try:
                    facts = path.stat()
                except FileNotFoundError:
                    continue  # another worker made room
                files[name[1]] = facts.st_size, facts.st_mtime
        return files


def _signature(path: Path) -> _Signature:
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _own(table: ChunkTable) -> OwnRows:
    """The fields that may be borrowed: those that f does not change."""
    return OwnRows({name: table.fields[name] for name in table.lasting}, table.ragged)
