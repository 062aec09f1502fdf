"""The directory carrier: mailboxes are folders of a disk that master and workers share.

    mail/<worker>/sync-00000012-<sha256>.safetensors    worker to master
    mail/<worker>/reply-00000012-<sha256>.safetensors   master to worker
    mail/<worker>/progress                              two int64: lease, upto
    chunks/<name>.safetensors

Syncs are fsynced before they get their name. Replies and chunks are not: the master can make them again from what is
durable. Files appear by rename, so a reader sees a whole file or none; the digest in the name shows damage all the
same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers import mailbox_files as mail
from gridml.carriers.base import MasterMailboxes, Message, WorkerMailbox
from gridml.protocol import bundle

SETTLED_S = 0.1  # a mailbox may change again without another mtime; clocks of local disks tick every 4 to 10 ms
LOOK_S = 1.0  # how often a mailbox is looked into whatever its mtime says: some disks cache it, or keep none


def _entries(folder: Path, kind: mail.Kind) -> list[mail.Entry]:
    """The messages of a kind, oldest first; a folder that is gone holds none."""
    try:
        return mail.entries(os.listdir(folder), kind)
    except FileNotFoundError:
        return []


def _whole(path: Path, sha256: str) -> bytes | None:
    """A file's content, None when it is gone or is not what its name says."""
    try:
        payload = path.read_bytes()
    except FileNotFoundError:
        return None
    return payload if bundle.digest(payload) == sha256 else None


class DirectoryMailbox(WorkerMailbox):
    """A worker's end in the run directory `root`."""

    def __init__(self, root: Path, worker: str) -> None:
        self._mail = root / "mail" / worker
        self._chunks = root / "chunks"
        self._progress = os.open(self._mail / mail.PROGRESS, os.O_RDWR | os.O_CREAT, 0o600)

    def send(self, number: int, payload: bytes) -> None:
        name = mail.name_of("sync", number, payload)
        for found in _entries(self._mail, "sync"):
            if found.number == number and found.name != name:  # removed first: the master must never see both
                (self._mail / found.name).unlink(missing_ok=True)
        bundle.write_atomic(self._mail / name, payload, durable_name=False)

    def receive(self, number: int) -> bytes | None:
        for found in mail.entries(os.listdir(self._mail), "reply"):
            path = self._mail / found.name
            payload = _whole(path, found.sha256) if found.number == number else None
            if found.number < number or payload is not None:
                path.unlink(missing_ok=True)
            if payload is not None:
                return payload
        return None

    def fetch(self, name: str, sha256: str) -> bytes:
        payload = (self._chunks / f"{name}{mail.SUFFIX}").read_bytes()
        if bundle.digest(payload) != sha256:
            raise ValueError(f"chunk {name} has another SHA-256 than its lease says")
        return payload

    def beat(self, lease: int, upto: int) -> None:
        os.pwrite(self._progress, mail.pack_progress(lease, upto), 0)

    def close(self) -> None:
        if self._progress >= 0:
            os.close(self._progress)
            self._progress = -1


@dataclass
class _Seen:
    """An empty mailbox: its mtime, since when that is known, and the last look into it, in seconds of our clock."""

    changed_ns: int
    since_s: float
    looked_s: float

    def still_empty(self, now: float) -> bool:
        """Whether what came after the last look would show in the mtime."""
        return self.looked_s - self.since_s >= SETTLED_S and now - self.looked_s < LOOK_S


class DirectoryMailboxes(MasterMailboxes):
    """The master's end in the run directory `root`. `clock` gives seconds."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._mail = root / "mail"
        self._chunks = root / "chunks"
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        for folder in (self._mail, self._chunks):
            folder.mkdir(parents=True, exist_ok=True)

    def open(self, worker: str) -> None:
        (self._mail / worker).mkdir(mode=0o700, exist_ok=True)

    def collect(self) -> list[Message]:
        found = []
        for box in self._changed():
            for entry in _entries(self._mail / box, "sync"):
                self._seen.pop(box, None)
                path = self._mail / box / entry.name
                payload = _whole(path, entry.sha256)
                if payload is None:
                    path.unlink(missing_ok=True)  # damaged: the worker will send it again
                else:
                    found.append(Message(box, entry.number, payload))
        return found

    def _changed(self) -> list[str]:
        """The mailboxes that may hold a message: a look into one costs several times what its mtime does."""
        found, mtimes = [], dict[str, int]()
        with os.scandir(self._mail) as boxes:
            for box in boxes:
                if not box.name.startswith("."):  # that one is being removed
                    with contextlib.suppress(FileNotFoundError):
                        mtimes[box.name] = box.stat().st_mtime_ns
        now = self._clock()  # later than the mtimes, earlier than the looks: then a message cannot slip between
        for name, changed_ns in mtimes.items():
            seen = self._seen.get(name)
            if seen is None or seen.changed_ns != changed_ns:
                seen = self._seen[name] = _Seen(changed_ns, now, now)
            elif seen.still_empty(now):
                continue
            seen.looked_s = now
            found.append(name)
        return sorted(found)

    def answer(self, worker: str, number: int, payload: bytes) -> None:
        box = self._mail / worker
        with contextlib.suppress(FileNotFoundError):  # the mailbox was closed: nobody waits for this reply
            bundle.write_atomic(box / mail.name_of("reply", number, payload), payload, durable=False)
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        for entry in _entries(self._mail / worker, "sync"):
            if entry.number <= number:
                (self._mail / worker / entry.name).unlink(missing_ok=True)

    def publish(self, name: str, payload: bytes) -> None:
        bundle.write_atomic(self._chunks / f"{name}{mail.SUFFIX}", payload, durable=False)

    def retract(self, name: str) -> None:
        (self._chunks / f"{name}{mail.SUFFIX}").unlink(missing_ok=True)

    def heartbeat(self, worker: str) -> tuple[int, int] | None:
        try:
            raw = (self._mail / worker / mail.PROGRESS).read_bytes()
        except FileNotFoundError:
            return None
        return mail.unpack_progress(raw)

    def clear(self) -> None:
        for box in os.listdir(self._mail):
            self.close(box)

    def close(self, worker: str) -> None:
        removed = self._mail / f".{worker}"
        self._seen.pop(worker, None)
        with contextlib.suppress(OSError):
            # The name goes first: a worker that still writes cannot keep its mailbox alive.
            (self._mail / worker).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
