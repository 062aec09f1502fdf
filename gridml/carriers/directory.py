"""The directory carrier: mailboxes are folders on a disk that master and workers share.

    mail/<worker>/sync-00000012-<sha256>.safetensors    worker to master
    mail/<worker>/reply-00000012-<sha256>.safetensors   master to worker
    mail/<worker>/progress                              the last heartbeat, three int64: lease, upto, number
    chunks/<name>.safetensors

Nothing here is fsynced. The master can rebuild replies and chunks from durable state. A sync that a power cut destroys
is sent again, or is lost, as any carrier may lose it. An fsync would delay a push of 500 MB by seconds, for a file that
is removed soon after. Files appear by rename, so a reader sees a complete file or none; the digest in the name detects
damage.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.base import (
    DIRECTIONS,
    HEARTBEAT,
    HEARTBEAT_BYTES,
    MAX_MAILBOX_FILES,
    SUFFIX,
    Direction,
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
from gridml.protocol.foreign import FOREIGN_ERRNOS, ForeignFile, read_regular, receive_regular, removal, remove
from gridml.protocol.outbox import is_attempt, job_of
from gridml.protocol.payload import Payload, Piece, Pieces, Received, network_disk

# Minimum age of an mtime that is trusted. File system clocks tick every 4 to 10 ms, so a younger one may hide changes.
SETTLED_S = 0.1
MAX_LISTED = 1 << 12  # files of a mailbox that one listing reads
MAX_REMOVED = 1 << 4  # files of a folder that the master's loop removes itself; a thread removes the others
MAX_TREE_FILES = 1 << 22  # ... up to this many, so that a worker that still writes into it cannot keep the thread
GROUP_BYTES = 1 << 27  # maximum bytes of the messages of one `collect`, unless a single message is longer
LIST_S = 1.0  # a mailbox is listed this often even if its mtime is unchanged: some disks cache mtimes, or have none
GATHER_S = 0.002  # after a sync has come, those of other workers are awaited so long: a group shares one version
WATCHED_POLL_S = 0.05, 0.1  # `poll_s` of a mailbox whose replies end a wait; it still looks, as an event may be lost
_IN_MOVED_TO, _IN_ONLYDIR, _IN_DONT_FOLLOW = 0x80, 0x1000000, 0x2000000
_EVENTS_BYTES = 1 << 16  # of events that one call reads


class FolderWatch:
    """Ends a wait when a message of one direction appears in a watched folder, by Linux's inotify.

    Its answers are hints. Without inotify, beyond its limits (128 watches a user is usual), and for changes by another
    machine, a wait takes its whole time, and the caller looks into the folder then. A watch that is no longer
    referenced closes itself.
    """

    def __init__(self, direction: Direction) -> None:
        self._begins = f"{direction}-".encode()
        self._handle, self._libc, self._poll = -1, ctypes.CDLL(None), select.poll()
        with contextlib.suppress(AttributeError):  # no Linux
            self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle >= 0:
            self._poll.register(self._handle, select.POLLIN)
            self._release = weakref.finalize(self, os.close, self._handle)
            self._release.atexit = False  # in a forked process the number may belong to another file

    def add(self, folder: Path) -> bool:
        """Watch a folder from now on until it is removed; return whether that is possible."""
        path, events = os.fsencode(folder), _IN_MOVED_TO | _IN_ONLYDIR | _IN_DONT_FOLLOW
        return self._handle >= 0 and self._libc.inotify_add_watch(self._handle, path, events) >= 0

    def wait(self, seconds: float) -> bool:
        """Wait until a message has appeared since the last `take`, for at most `seconds`. Return whether one has."""
        if self._handle < 0:
            time.sleep(seconds)
            return False
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and self._poll.poll(1e3 * left_s):
            if self.take():
                return True
        return False

    def take(self) -> bool:
        """Forget the messages that have appeared; return whether there were any. Never blocks."""
        with contextlib.suppress(BlockingIOError):
            return self._handle >= 0 and self._begins in os.read(self._handle, _EVENTS_BYTES)
        return False

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._handle >= 0:
            self._handle = -1
            self._release()


class DirectoryLink(FileLink):
    """The files of run directory `root` on a mounted disk. Holds no file open."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"  # paths are joined as text: with Path, a poll would take twice the time

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
        bundle.write_named(lambda sha256: Path(self._root + path(sha256)), payload)

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
        self._replies = FolderWatch("reply") if self._maps else None
        if self._replies is not None and self._replies.add(root / self._folder):
            self.poll_s = WATCHED_POLL_S
        else:
            self._replies = None

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

    def wait(self, seconds: float, rest: Callable[[float], object]) -> None:
        if self._replies is None:
            rest(seconds)
        else:
            self._replies.wait(seconds)

    def close(self) -> None:
        super().close()
        if self._replies is not None:
            self._replies.close()
        if self._heartbeat >= 0:
            os.close(self._heartbeat)
            self._heartbeat = -1


@dataclass
class _EmptyMailbox:
    """A mailbox that was empty when last listed. Times in seconds are of this process's clock."""

    changed_ns: int  # mtime of the folder
    since_s: float  # time at which that mtime was first seen
    listed_s: float  # time at which the folder was last listed

    def still_empty(self, now_s: float) -> bool:
        """Return whether a message that came after the last listing would certainly have changed the mtime."""
        return self.listed_s - self.since_s >= SETTLED_S and now_s - self.listed_s < LIST_S


class DirectoryMailboxes(MasterMailboxes):
    """The mailboxes and chunks in run directory `root`. `clock` gives seconds."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._mail = root / "mail"
        self._chunks = root / "chunks"
        self._clock = clock
        self._empty: dict[str, _EmptyMailbox] = {}  # by worker; a mailbox with a message has no entry
        self._problems: list[Message] = []  # problems of mailboxes as a whole that are not collected yet
        self._removals = ThreadPoolExecutor(1, "removals")  # has no thread before it has work
        self._left: deque[str] = deque()  # workers whose changed mailboxes are not read yet
        self._arrivals = FolderWatch("sync")
        self._watched: set[str] = set()  # workers whose mailboxes it watches
        self._listed: dict[str, list[MessageFile]] = {}  # by worker: the syncs of its collected message's listing
        self._held: dict[str, int] = {}  # by worker: the last sync that is not collected again
        for folder in (self._mail, self._chunks):
            folder.mkdir(parents=True, exist_ok=True)

    def open(self, worker: str) -> None:
        mailbox = self._mail / worker
        if mailbox.is_symlink() or not mailbox.is_dir():
            remove(mailbox)  # it is a link or a file
            mailbox.mkdir(mode=0o700)

    def wait(self, seconds: float) -> None:
        if self._arrivals.wait(seconds) and len(self._watched) > 1:
            time.sleep(GATHER_S)

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
        """Return the newest sync in a mailbox, or why it cannot be used. Reads at most one."""
        listed = self._listed[worker] = self._syncs(worker)
        for sync in reversed([sync for sync in listed if sync.number > self._held.get(worker, -1)]):
            path = Path(f"{self._mail}/{worker}/{sync.name}")
            try:
                payload = receive_regular(path, self.longest)
            except FileNotFoundError:
                continue
            except ForeignFile as error:
                return Message(worker, sync.number, b"", str(error))
            if bundle.digest(payload) == sync.sha256:
                return Message(worker, sync.number, payload)
            self._remove(worker, sync.name)
            problem = f"its {len(payload):,} bytes have another SHA-256 than its name"
            return Message(worker, sync.number, b"", problem, is_damaged=True)
        return None

    def _changed(self) -> list[str]:
        """Return the workers whose mailboxes may hold a message. Mailboxes with an unchanged mtime are skipped: to list
        them would take several times longer."""
        changed, mtimes = [], dict[str, int]()
        self._arrivals.take()  # what has appeared by now is seen below
        with os.scandir(self._mail) as mailboxes:
            for mailbox in mailboxes:
                # A mailbox with a leading dot is being removed. It is ignored, like all that is no worker's folder.
                name = mailbox.name
                if (name in self._empty or is_attempt(name, job_of(name))) and mailbox.is_dir(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        mtimes[mailbox.name] = mailbox.stat(follow_symlinks=False).st_mtime_ns
        for worker in mtimes.keys() - self._watched:
            self._arrivals.add(self._mail / worker)
        self._watched = {*mtimes}
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
        """Return the syncs in a mailbox, oldest first; none if the mailbox no longer exists. Of more than
        `MAX_MAILBOX_FILES` files, all but the newest messages are removed, because they would slow down every listing.
        Of more than `MAX_LISTED`, the others wait for the next call.
        """
        try:
            with os.scandir(self._mail / worker) as entries:
                names = [entry.name for entry in itertools.islice(entries, MAX_LISTED)]
        except OSError as error:
            self._handle_error(worker, error)
            return []
        if len(names) <= MAX_MAILBOX_FILES:
            return message_files(names, "sync")
        kept = [file.name for direction in DIRECTIONS for file in message_files(names, direction)[-1:]]
        for name in {*names} - {*kept, HEARTBEAT}:
            self._remove(worker, name)
        more = " or more" * (len(names) == MAX_LISTED)
        self._report(worker, f"{len(names):,} files{more} lay in its mailbox, expected at most {MAX_MAILBOX_FILES}")
        return message_files(kept, "sync")

    def _remove(self, worker: str, name: str) -> None:
        try:
            self._clear_away(Path(f"{self._mail}/{worker}/{name}"))
        except OSError as error:
            self._handle_error(worker, error)

    def _clear_away(self, path: Path) -> None:
        """Remove what lies at a path. The master's loop does not wait for a large folder. Raises errors of the disk."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in FOREIGN_ERRNOS:
                raise
            # Moved away first, so that a worker that still writes cannot keep the folder alive.
            steps = removal(path, self._mail)
            if len([*itertools.islice(steps, MAX_REMOVED)]) == MAX_REMOVED:
                self._removals.submit(deque, itertools.islice(steps, MAX_TREE_FILES), 0)

    def _handle_error(self, worker: str, error: OSError) -> None:
        """Report an error that the worker caused in its own mailbox. Raises errors of the master's disk."""
        if isinstance(error, FileNotFoundError):
            return  # the mailbox was closed
        if error.errno not in FOREIGN_ERRNOS:
            raise error
        self._report(worker, f"its mailbox cannot be used: {error.strerror}")

    def _report(self, worker: str, problem: str) -> None:
        self._problems.append(Message(worker, 0, b"", problem))

    def hold(self, worker: str, number: int) -> None:
        self._held[worker] = number

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        mailbox = self._mail / worker
        try:
            bundle.write_named(lambda sha256: mailbox / name_of("reply", number, sha256), payload)
        except OSError as error:
            self._handle_error(worker, error)  # a closed mailbox needs no reply
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        self._held.pop(worker, None)
        listed = self._listed.pop(worker, [])  # a second listing is only needed if the sync came after this one
        for sync in listed if any(sync.number == number for sync in listed) else self._syncs(worker):
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
        self._empty.pop(worker, None)
        self._listed.pop(worker, None)
        self._held.pop(worker, None)
        self._watched.discard(worker)
        with contextlib.suppress(OSError):
            self._clear_away(self._mail / worker)

    def stop(self) -> None:
        self._arrivals.close()
        self._removals.shutdown()
