"""A worker's mailbox over a link: a connection that lists, gets, puts and unlinks files of the run directory.

The layout and the file names are those of the directory carrier, which also implements the master's mailboxes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from gridml.carriers.base import HEARTBEAT, SUFFIX, Heartbeat, WorkerMailbox, message_files, name_of, pack_heartbeat
from gridml.protocol import bundle
from gridml.protocol.payload import Arrived, Payload, Pieces, Received, in_pieces

HEARTBEAT_S = 0.2  # minimum time between two heartbeats, because each is a round trip to the submit host


class FileLink(ABC):
    """Files of the run directory, by paths relative to it.

    A link connects on first use, and reconnects after a broken connection. Every method raises OSError with an errno,
    and FileNotFoundError for a missing file. No method blocks forever. Threads can share a link, because it serialises
    calls.
    """

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """Return the names in a folder."""

    @abstractmethod
    def get(self, path: str) -> Received:
        """Return a file's content, hashed while it is received."""

    @abstractmethod
    def put(self, path: str, payload: Payload) -> None:
        """Write a file atomically."""

    def put_named(self, path: Callable[[str], str], payload: Pieces) -> None:
        """Write a file as `put` does, to a path derived from its SHA-256."""
        self.put(path(payload.sha256), payload)

    def write(self, path: str, payload: Payload) -> None:
        """Write a file with as few round trips as possible. Not atomic: a reader can see an empty file."""
        self.put(path, payload)

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Remove a file. A missing file is no error."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent; a later call reconnects."""


def temporary_path(path: str) -> str:
    """Return the path at which a file is written before its rename: `box/.message.tmp` for `box/message`."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.tmp"


class LinkedMailbox(WorkerMailbox):
    """The mailbox of worker `worker`: messages over one link, chunks over another. A subclass writes the heartbeats."""

    def __init__(self, worker: str, messages: FileLink, chunks: FileLink) -> None:
        self._folder = f"mail/{worker}"
        self._messages, self._chunks = messages, chunks

    def send(self, number: int, payload: Payload) -> None:
        pieces = in_pieces(payload)
        for sync in message_files(self._messages.list(self._folder), "sync"):
            if sync.number == number and sync.sha256 == pieces.sha256:
                return  # sent before, and not yet read by the master
            if sync.number == number:  # remove other content with this number first, so that the master never sees both
                self._messages.unlink(f"{self._folder}/{sync.name}")
        self._messages.put_named(lambda sha256: f"{self._folder}/{name_of('sync', number, sha256)}", pieces)

    def receive(self, number: int) -> Arrived | None:
        try:
            names = self._messages.list(self._folder)
        except FileNotFoundError:
            raise
        except OSError:
            return None  # the run directory is unreachable for now
        with contextlib.suppress(OSError):
            for reply in message_files(names, "reply"):
                path = f"{self._folder}/{reply.name}"
                payload = self._messages.get(path) if reply.number == number else b""
                whole = reply.number == number and bundle.digest(payload) == reply.sha256
                if reply.number < number or whole:
                    self._messages.unlink(path)
                if whole:
                    return payload
        return None

    def fetch(self, name: str, sha256: str) -> Arrived:
        payload = self._chunks.get(f"chunks/{name}{SUFFIX}")
        if bundle.digest(payload) != sha256:
            raise ValueError(f"chunk {name} has another SHA-256 than its lease")
        return payload

    def close(self) -> None:
        self._messages.close()
        self._chunks.close()


class FileMailbox(LinkedMailbox):
    """The mailbox of worker `worker` over links from `connect`. Raises what `connect` raises.

    Messages, chunks and heartbeats have a link each, and heartbeats are sent by a thread of their own. A link
    serialises its calls, so on a shared link a heartbeat would wait for a push under way.
    """

    poll_s = (0.03, 0.2)

    def __init__(self, worker: str, connect: Callable[[], FileLink], heartbeat_s: float = HEARTBEAT_S) -> None:
        super().__init__(worker, connect(), connect())
        self._beats = itertools.count(1)
        self._heartbeats = _HeartbeatWriter(connect(), f"{self._folder}/{HEARTBEAT}", heartbeat_s)

    def beat(self, lease: int, upto: int) -> None:
        self._heartbeats.write(pack_heartbeat(Heartbeat(lease, upto, next(self._beats))))

    def close(self) -> None:
        self._heartbeats.close()
        super().close()


class _HeartbeatWriter:
    """Writes the newest heartbeat, at most one every `every_s` seconds, on a thread, so that training never waits."""

    def __init__(self, link: FileLink, path: str, every_s: float) -> None:
        self._link, self._path, self._every_s = link, path, every_s
        self._newest: bytes | None = None  # the heartbeat to write next, if any
        self._changed = threading.Condition()  # guards `_newest` and `_closed`
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="heartbeats", daemon=True)
        self._thread.start()

    def write(self, heartbeat: bytes) -> None:
        with self._changed:
            self._newest = heartbeat
            self._changed.notify()

    def close(self) -> None:
        """Stop. The last heartbeat is still written, unless writing it takes more than a second."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self._link.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closed)
                heartbeat, self._newest = self._newest, None
            if heartbeat is None:
                return
            with contextlib.suppress(OSError):  # a lost heartbeat is replaced by the next
                self._link.write(self._path, heartbeat)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, self._every_s)
