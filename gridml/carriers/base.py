"""The contract of a carrier: it moves numbered payloads between a worker and the master, and chunks to workers.

A carrier may lose, delay, duplicate or reorder payloads. It must not deliver an altered or torn payload; the SHA-256 of
the payload detects that. The memory of a payload to send may belong to the caller (`Pieces`), so a carrier must have
read it when the call returns. Exactly-once credit and fencing are the task of the protocol, not of the carrier.
`gridml.testing.carriers` checks this contract.

All carriers name the files of a mailbox alike: `<direction>-<number>-<sha256>.safetensors`. Files appear by rename, so
a reader sees a complete file or none; the digest in the name detects damage on the disk. `Forwarding` is a base class
for carriers that override a few calls and pass all others on.
"""

from __future__ import annotations

import re
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gridml.protocol.foreign import MAX_INTEGER
from gridml.protocol.payload import Arrived, Payload, Piece


@dataclass(frozen=True)
class Message:
    """A sync as it reached the master."""

    worker: str
    number: int  # of the sync, from 1; 0 for a problem of the mailbox as a whole
    payload: Arrived  # empty if `problem` is set
    problem: str = ""  # the reason why no sync could be read
    is_damaged: bool = False  # the sync may have been damaged on its way; it was removed from the mailbox


BEGUN, LEFT = 0, -1  # values of `Heartbeat.lease` without a lease in hand; lease ids begin at 1


class Heartbeat(NamedTuple):
    """The last heartbeat of a worker process."""

    lease: int  # the lease in hand; BEGUN before the first lease, LEFT after the last
    upto: int  # vertices of the lease before this position are trained
    number: int  # counts the heartbeats of the process: a new number shows that it is alive


class WorkerMailbox(ABC):
    """A worker's end of a carrier. The worker starts every exchange; nothing ever connects to it."""

    poll_s: tuple[float, float] = (0.005, 0.02)
    """Seconds between two polls for a reply: (first interval, longest interval)."""

    @abstractmethod
    def send(self, number: int, payload: Payload) -> None:
        """Send sync `number`. It replaces an earlier sync of the same number. Raises OSError if it cannot be stored."""

    @abstractmethod
    def receive(self, number: int) -> Arrived | None:
        """Return the reply to sync `number`, or None if it has not come yet. Never blocks. A torn reply counts as none.

        Raises FileNotFoundError when the mailbox no longer exists, so no reply will come.
        """

    def wait(self, seconds: float, rest: Callable[[float], object]) -> None:
        """Wait until a reply may have come, for at most `seconds`. A carrier that is not notified of replies
        calls `rest`, which may end earlier."""
        rest(seconds)

    @abstractmethod
    def fetch(self, name: str, sha256: str) -> Arrived:
        """Return a published chunk. Raises ValueError if its SHA-256 differs, OSError if it cannot be read."""

    def view(self, name: str, sha256: str) -> Piece:
        """Return a published chunk read-only. If possible, a carrier maps the chunk from its file, so that it takes no
        memory of this process. Raises as `fetch` does."""
        return self.fetch(name, sha256)

    @abstractmethod
    def beat(self, lease: int, upto: int) -> None:
        """Record that the vertices of lease `lease` before position `upto` are trained. The record outlives this
        process.

        Every call is a new heartbeat, also with the same values. A broken connection raises nothing. A call must be
        cheap enough for every batch: a carrier with expensive heartbeats may drop those that come less than a second
        after the last.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent."""


class MasterMailboxes(ABC):
    """The master's end of a carrier: the mailboxes of all workers and the published chunks."""

    carries_chunks = True
    """True if chunks must be written; False for simulated workers that only consume time."""

    longest = sys.maxsize
    """Maximum bytes of a sync. Set by `limit` only."""

    @property
    def more(self) -> bool:
        """True if the last `collect` left messages for the next call, to bound the memory that messages take."""
        return False

    def limit(self, longest: int) -> None:
        """Set the maximum bytes of a sync. `collect` returns a longer sync without its payload, with a problem."""
        self.longest = longest

    @abstractmethod
    def open(self, worker: str) -> None:
        """Create a mailbox, before its worker starts. An existing mailbox keeps its messages."""

    @abstractmethod
    def collect(self) -> list[Message]:
        """Return the newest complete, unanswered sync of each worker. Never blocks.

        A worker sends the next sync only after a reply, so an older sync is a late duplicate. Each call returns an
        invalid message, with its `problem`, until the message is discarded. A damaged sync is removed and returned
        once, without its payload, so that the master can count it; the worker sends it again. Nothing that a worker
        does to its mailbox makes this method raise, or take longer than an honest worker's largest sync does.
        """

    def wait(self, seconds: float) -> None:
        """Wait until a sync may have come since the last `collect`, for at most `seconds`. A carrier that is not
        notified of syncs waits that long."""
        time.sleep(seconds)

    def hold(self, worker: str, number: int) -> None:
        """Keep sync `number` of a worker, whose reply comes later, without collecting it again. It stays in the mailbox
        for the next master. A carrier may ignore this, and collect it again."""
        return

    @abstractmethod
    def answer(self, worker: str, number: int, payload: Payload) -> None:
        """Reply to a sync. From then on that sync and all earlier ones are no longer collected."""

    @abstractmethod
    def discard(self, worker: str, number: int) -> None:
        """Drop sync `number` and all earlier ones without a reply."""

    @abstractmethod
    def publish(self, name: str, payload: Payload) -> None:
        """Publish a chunk for workers."""

    def share(self, name: str, path: Path) -> bool:
        """Publish an immutable file like a chunk, but without a copy. It stays published until it is retracted. Returns
        False if the carrier cannot do that."""
        return False

    @abstractmethod
    def retract(self, name: str) -> None:
        """Remove a published chunk. An unknown name is ignored."""

    @abstractmethod
    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the worker's last heartbeat; None if there is no heartbeat or no mailbox."""

    @abstractmethod
    def clear(self) -> None:
        """Remove every mailbox."""

    @abstractmethod
    def close(self, worker: str) -> None:
        """Remove a mailbox. Later messages of that worker are lost, which is safe: the protocol would reject them.
        Idempotent."""

    def stop(self) -> None:  # noqa: B027
        """Stop serving the mailboxes. They stay for the next master. Idempotent."""


Direction = Literal["sync", "reply"]  # worker to master, master to worker
DIRECTIONS: tuple[Direction, ...] = ("sync", "reply")
MAX_MAILBOX_FILES = 64  # an honest worker leaves a handful
SUFFIX = ".safetensors"  # of messages and chunks
HEARTBEAT = "progress"  # file of the last heartbeat: lease, upto and number as little-endian int64
_MESSAGE = re.compile(r"(sync|reply)-(\d{8})-([0-9a-f]{64})\.safetensors")
_HEARTBEAT = struct.Struct("<qqq")
HEARTBEAT_BYTES = _HEARTBEAT.size


class MessageFile(NamedTuple):
    """The parts of a message file's name."""

    number: int
    name: str
    sha256: str


def name_of(direction: Direction, number: int, sha256: str) -> str:
    """Return the file name of a message."""
    return f"{direction}-{number:08d}-{sha256}{SUFFIX}"


def message_files(names: Iterable[str], direction: Direction) -> list[MessageFile]:
    """Return the messages of one direction among the file names of a mailbox, oldest first."""
    matches = [match for name in names if (match := _MESSAGE.fullmatch(name)) and match[1] == direction]
    return sorted(MessageFile(int(match[2]), match[0], match[3]) for match in matches)


def pack_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the content of the file of a heartbeat."""
    return _HEARTBEAT.pack(*heartbeat)


def unpack_heartbeat(raw: bytes) -> Heartbeat | None:
    """Return the heartbeat that a file's content encodes; None if it is torn or out of bounds."""
    if len(raw) != HEARTBEAT_BYTES:
        return None
    heartbeat = Heartbeat(*_HEARTBEAT.unpack(raw))
    return heartbeat if max(map(abs, heartbeat)) <= MAX_INTEGER else None


def _passed_on(name: str) -> Any:
    """Return a method that passes its calls on to `_mailboxes`."""
    return lambda self, *arguments: getattr(self._mailboxes, name)(*arguments)


class Forwarding(MasterMailboxes):
    """Passes every call on to `mailboxes`; a subclass overrides some of them."""

    def __init__(self, mailboxes: MasterMailboxes) -> None:
        self._mailboxes = mailboxes
        self.carries_chunks = mailboxes.carries_chunks

    @property
    def more(self) -> bool:
        return self._mailboxes.more

    limit, open, collect, wait, answer = map(_passed_on, ("limit", "open", "collect", "wait", "answer"))
    hold, discard, publish, share, retract = map(_passed_on, ("hold", "discard", "publish", "share", "retract"))
    heartbeat, clear, close, stop = map(_passed_on, ("heartbeat", "clear", "close", "stop"))
