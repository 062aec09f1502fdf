"""A worker's end over any way to reach files on the submit host: a link that lists, gets, puts and unlinks them.

Layout and names are the directory carrier's, which is also the master's end.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from gridml.carriers import mailbox_files as mail
from gridml.carriers.base import WorkerMailbox
from gridml.protocol import bundle

NOTE_S = 0.2  # seconds between two notes of how far training has come: each is a round trip to the submit host


class Files(ABC):
    """Files of the run directory, by paths relative to it.

    A link connects when it is first used, and anew after its connection broke. Every method raises OSError with its
    errno, FileNotFoundError for what is not there, and none waits for ever. Threads may share a link; what they ask
    is done one after the other.
    """

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """The names in a folder."""

    @abstractmethod
    def get(self, path: str) -> bytes:
        """A file's content."""

    @abstractmethod
    def put(self, path: str, payload: bytes) -> None:
        """Write a file so that it is there whole or not at all."""

    @abstractmethod
    def write(self, path: str, payload: bytes) -> None:
        """Write a file in fewer round trips; a reader may meanwhile see it empty."""

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Remove a file. One that is not there is no error."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection. Idempotent; whatever is asked later makes another one."""


def temporary(path: str) -> str:
    """Where a file is written before it gets its name: `box/.message.tmp` for `box/message`."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.tmp"


class FileMailbox(WorkerMailbox):
    """The end of worker `worker` over the links that `connect` makes.

    Messages and chunks have a link each, and notes a thread: a link does one thing at a time, so that a note would
    wait while a push is under way. Raises what `connect` raises.
    """

    poll_s = (0.03, 0.2)

    def __init__(self, worker: str, connect: Callable[[], Files], note_s: float = NOTE_S) -> None:
        self._letters, self._chunks = connect(), connect()
        self._mail = f"mail/{worker}"
        self._notes = _Notes(connect(), f"{self._mail}/{mail.PROGRESS}", note_s)

    def send(self, number: int, payload: bytes) -> None:
        name = mail.name_of("sync", number, payload)
        for found in mail.entries(self._letters.list(self._mail), "sync"):
            if found.number == number and found.name != name:  # removed first: the master must never see both
                self._letters.unlink(f"{self._mail}/{found.name}")
        self._letters.put(f"{self._mail}/{name}", payload)

    def receive(self, number: int) -> bytes | None:
        try:
            names = self._letters.list(self._mail)
        except FileNotFoundError:
            raise
        except OSError:
            return None  # out of reach for the moment
        with contextlib.suppress(OSError):
            for found in mail.entries(names, "reply"):
                path = f"{self._mail}/{found.name}"
                payload = self._letters.get(path) if found.number == number else b""
                whole = found.number == number and bundle.digest(payload) == found.sha256
                if found.number < number or whole:
                    self._letters.unlink(path)
                if whole:
                    return payload
        return None

    def fetch(self, name: str, sha256: str) -> bytes:
        payload = self._chunks.get(f"chunks/{name}{mail.SUFFIX}")
        if bundle.digest(payload) != sha256:
            raise ValueError(f"chunk {name} has another SHA-256 than its lease says")
        return payload

    def beat(self, lease: int, upto: int) -> None:
        self._notes.leave(mail.pack_progress(lease, upto))

    def close(self) -> None:
        self._notes.close()
        self._letters.close()
        self._chunks.close()


class _Notes:
    """Writes the newest note, every `every_s` seconds at most, on a thread of its own: training never waits for it."""

    def __init__(self, link: Files, path: str, every_s: float) -> None:
        self._link, self._path, self._every_s = link, path, every_s
        self._newest: bytes | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="notes", daemon=True)
        self._thread.start()

    def leave(self, note: bytes) -> None:
        with self._changed:
            self._newest = note
            self._changed.notify()

    def close(self) -> None:
        """The last note is written if that takes no longer than a second."""
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
                note, self._newest = self._newest, None
            if note is None:
                return
            with contextlib.suppress(OSError):  # only the count of wasted work depends on it
                self._link.write(self._path, note)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, self._every_s)
