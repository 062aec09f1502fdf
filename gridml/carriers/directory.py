"""The directory carrier: mailboxes are folders on a disk that master and workers share.

    mail/<worker>/sync-00000012-<sha256>.safetensors    worker to master
    mail/<worker>/reply-00000012-<sha256>.safetensors   master to worker
    mail/<worker>/progress                              the last heartbeat, three int64: lease, upto, number
    chunks/<name>.safetensors

Nothing here is fsynced. The master can rebuild replies and chunks from durable state, and a sync lost to a power cut is
sent again, or lost as by any carrier. An fsync would delay a push of 500 MB by seconds, for a file that is removed soon
after. Files appear by rename, so a reader sees a complete file or none; the digest in the name detects damage.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.base import (
    DIRECTIONS,
    HEARTBEAT,
    HEARTBEAT_BYTES,
    MAX_MAILBOX_FILES,
    SUFFIX,
    Heartbeat,
    MasterMailboxes,
    Message,
    MessageFile,
    WorkerMailbox,
    message_files,
    name_of,
    pack_heartbeat,
    unpack_heartbeat,
)
from gridml.carriers.file_link import FileLink, LinkedMailbox
from gridml.protocol import bundle
from gridml.protocol.foreign import FOREIGN_ERRNOS, ForeignFile, read_regular, receive_regular, remove
from gridml.protocol.outbox import is_attempt, job_of
from gridml.protocol.payload import Payload, Piece, Pieces, Received, network_disk

SETTLED_S = 0.1  # age from which an mtime is trusted: file system clocks tick every 4 to 10 ms, so it may hide changes
GROUP_BYTES = 1 << 27  # of the messages of one `collect`, which are in memory at once; at least one message
LIST_S = 1.0  # a mailbox is listed this often even with an unchanged mtime: some disks cache mtimes, or have none


class DirectoryLink(FileLink):
    """The files of run directory `root` on a mounted disk. Holds no file open."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"  # joined as text: a poll costs half of what it does with Path

    def list(self, folder: str) -> list[str]:
        return os.listdir(self._root + folder)

    def get(self, path: str) -> Received:
        with open(self._root + path, "rb", buffering=0) as file:
            content = Received(os.fstat(file.fileno()).st_size)
            content.read(file.fileno())
            return content

    def put(self, path: str, payload: Payload) -> None:
        bundle.write_atomic(Path(self._root + path), payload, durable=False)

    def put_named(self, path: Callable[[str], str], payload: Pieces) -> None:
        bundle.write_named(lambda sha256: Path(self._root + path(sha256)), payload, durable=False)

    def unlink(self, path: str) -> None:
        Path(self._root + path).unlink(missing_ok=True)

    def close(self) -> None:
        pass


class DirectoryMailbox(LinkedMailbox):
    """The mailbox of worker `worker` in run directory `root`. Raises OSError when it does not exist."""

    poll_s = WorkerMailbox.poll_s

    def __init__(self, root: Path, worker: str) -> None:
        link = DirectoryLink(root)
        super().__init__(worker, link, link)
        self._chunks_folder = root / "chunks"
        # On a network disk a mapping may become invalid when the file is unlinked.
        self._maps = network_disk(root) is None
        self._beats = itertools.count(1)
        self._heartbeat = os.open(root / self._folder / HEARTBEAT, os.O_RDWR | os.O_CREAT, 0o600)

    def view(self, name: str, sha256: str) -> Piece:
        if not self._maps:
            return self.fetch(name, sha256)
        with (self._chunks_folder / f"{name}{SUFFIX}").open("rb") as file:
            payload = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if bundle.digest(payload) != sha256:
            raise ValueError(f"{name} has another SHA-256 than its reply")
        return payload

    def beat(self, lease: int, upto: int) -> None:
        os.pwrite(self._heartbeat, pack_heartbeat(Heartbeat(lease, upto, next(self._beats))), 0)  # 2 µs

    def close(self) -> None:
        super().close()
        if self._heartbeat >= 0:
            os.close(self._heartbeat)
            self._heartbeat = -1


@dataclass
class _EmptyMailbox:
    """A mailbox that was empty when last listed. Times are those of this process's clock."""

    changed_ns: int  # mtime of the folder
    since_s: float  # when that mtime was first seen
    listed_s: float  # when the folder was last listed

    def still_empty(self, now_s: float) -> bool:
        """Return whether any message after the last listing must have changed the mtime."""
        return self.listed_s - self.since_s >= SETTLED_S and now_s - self.listed_s < LIST_S


class DirectoryMailboxes(MasterMailboxes):
    """The mailboxes and chunks in run directory `root`. `clock` gives seconds."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._mail = root / "mail"
        self._chunks = root / "chunks"
        self._clock = clock
        self._empty: dict[str, _EmptyMailbox] = {}  # by worker; a mailbox with a message has no entry
        self._problems: list[Message] = []  # of mailboxes as a whole, not collected yet
        self._left: deque[str] = deque()  # workers whose mailboxes changed, not read yet
        for folder in (self._mail, self._chunks):
            folder.mkdir(parents=True, exist_ok=True)

    def open(self, worker: str) -> None:
        mailbox = self._mail / worker
        if mailbox.is_symlink() or not mailbox.is_dir():
            remove(mailbox)  # a link or a file in its place
            mailbox.mkdir(mode=0o700)

    def collect(self) -> list[Message]:
        self._left = self._left or deque(self._changed())
        messages, length, longest = list[Message](), 0, 0
        while self._left and length + longest <= GROUP_BYTES:
            worker = self._left.popleft()
            newest = self._newest(worker)
            if newest is not None:
                self._empty.pop(worker, None)
                messages.append(newest)
                length, longest = length + len(newest.payload), max(longest, len(newest.payload))
        problems, self._problems = self._problems, []
        return problems + messages

    @property
    def more(self) -> bool:
        return bool(self._left)

    def _newest(self, worker: str) -> Message | None:
        """Return the newest complete sync in a mailbox, or the problem of an unusable one."""
        for sync in reversed(self._syncs(worker)):
            path = self._mail / worker / sync.name
            try:
                payload = receive_regular(path, self.longest)
            except FileNotFoundError:
                continue
            except ForeignFile as error:
                return Message(worker, sync.number, b"", str(error))
            if bundle.digest(payload) == sync.sha256:
                return Message(worker, sync.number, payload)
            self._remove(worker, sync.name)  # damaged: the worker sends it again
        return None

    def _changed(self) -> list[str]:
        """Return the workers whose mailboxes may hold a message, by mtime, as listing costs several times more."""
        changed, mtimes = [], dict[str, int]()
        with os.scandir(self._mail) as mailboxes:
            for mailbox in mailboxes:
                # A name with a leading dot is being removed. Anything else that is no folder or no worker is ignored.
                name = mailbox.name
                if (name in self._empty or is_attempt(name, job_of(name))) and mailbox.is_dir(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        mtimes[mailbox.name] = mailbox.stat(follow_symlinks=False).st_mtime_ns
        now_s = self._clock()  # after the mtimes and before the listings, so that no message is missed
        for worker, changed_ns in mtimes.items():
            empty = self._empty.get(worker)
            if empty is None or empty.changed_ns != changed_ns:
                empty = self._empty[worker] = _EmptyMailbox(changed_ns, now_s, now_s)
            elif empty.still_empty(now_s):
                continue
            empty.listed_s = now_s
            changed.append(worker)
        return sorted(changed)

    def _syncs(self, worker: str) -> list[MessageFile]:
        """Return the syncs in a mailbox, oldest first; none where it no longer exists. Surplus files beyond
        `MAX_MAILBOX_FILES` are removed at once, because every listing would pay for them."""
        try:
            names = os.listdir(self._mail / worker)
        except OSError as error:
            self._handle_error(worker, error)
            return []
        if len(names) <= MAX_MAILBOX_FILES:
            return message_files(names, "sync")
        kept = [file.name for direction in DIRECTIONS for file in message_files(names, direction)[-1:]]
        for name in {*names} - {*kept, HEARTBEAT}:
            self._remove(worker, name)
        self._report(worker, f"{len(names):,} files lay in its mailbox, expected at most {MAX_MAILBOX_FILES}")
        return message_files(kept, "sync")

    def _remove(self, worker: str, name: str) -> None:
        try:
            remove(self._mail / worker / name)
        except OSError as error:
            self._handle_error(worker, error)

    def _handle_error(self, worker: str, error: OSError) -> None:
        """Report an error that the worker caused in its own mailbox. Raises errors of the master's disk."""
        if isinstance(error, FileNotFoundError):
            return  # the mailbox was closed
        if error.errno not in FOREIGN_ERRNOS:
            raise error
        self._report(worker, f"its mailbox cannot be used: {error.strerror}")

    def _report(self, worker: str, problem: str) -> None:
        self._problems.append(Message(worker, 0, b"", problem))

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        mailbox = self._mail / worker
        try:
            bundle.write_named(lambda sha256: mailbox / name_of("reply", number, sha256), payload, durable=False)
        except OSError as error:
            self._handle_error(worker, error)  # a closed mailbox needs no reply
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        for sync in self._syncs(worker):
            if sync.number <= number:
                self._remove(worker, sync.name)

    def publish(self, name: str, payload: Payload) -> None:
        bundle.write_atomic(self._chunks / f"{name}{SUFFIX}", payload, durable=False)

    def share(self, name: str, path: Path) -> bool:
        try:
            os.link(path, self._chunks / f"{name}{SUFFIX}")
        except FileExistsError:
            return True
        except OSError:  # another disk, or one without links
            return False
        return True

    def retract(self, name: str) -> None:
        (self._chunks / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def heartbeat(self, worker: str) -> Heartbeat | None:
        try:
            return unpack_heartbeat(read_regular(self._mail / worker / HEARTBEAT, HEARTBEAT_BYTES))
        except (FileNotFoundError, ForeignFile):
            return None

    def clear(self) -> None:
        for worker in os.listdir(self._mail):
            self.close(worker)

    def close(self, worker: str) -> None:
        removed = self._mail / f".{worker}"
        self._empty.pop(worker, None)
        with contextlib.suppress(OSError):
            # Renamed first, so that a worker that still writes cannot keep the mailbox alive.
            (self._mail / worker).rename(removed)
        with contextlib.suppress(OSError):
            remove(removed)
