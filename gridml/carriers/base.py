"""The contract of a carrier: it moves numbered payloads between a worker and the master, and chunks to workers.

A carrier may lose, delay, duplicate or reorder payloads. It must not deliver an altered or a torn one; the SHA-256 of
each detects that. The memory of a payload to send may belong to others (`Pieces`), so it is read before the call
returns. Exactly-once credit and fencing are the protocol's. `gridml.testing.carriers` checks this contract.

All carriers name the files of a mailbox alike: `<direction>-<number>-<sha256>.safetensors`. Files appear by rename, so
a reader sees a complete file or none; the digest in the name detects damage on the disk. `Forwarding` passes every call
on to other mailboxes, for carriers that override a few calls.
"""

from __future__ import annotations

import re
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from gridml.protocol.foreign import MAX_INTEGER
from gridml.protocol.payload import Arrived, Payload, Piece


@dataclass(frozen=True)
class Message:
    """A sync as it reached the master."""

    worker: str
    number: int  # from 1; 0 for a problem of the mailbox as a whole
    payload: Arrived  # empty where `problem` is set
    problem: str = ""  # the reason for which no sync could be read


BEGUN, LEFT = 0, -1  # in `Heartbeat.lease`, in place of a lease, whose id is 1 or more


class Heartbeat(NamedTuple):
    """The last heartbeat of a worker process."""

    lease: int  # the lease in hand; BEGUN before the first one, LEFT at the end
    upto: int  # vertices of the lease before this position are trained
    number: int  # counts the heartbeats of the process: a new number shows that it is alive


class WorkerMailbox(ABC):
    """A worker's end of a carrier. The worker starts every exchange; nothing ever connects to it."""

    poll_s: tuple[float, float] = (0.005, 0.02)
    """The poll interval for a reply in seconds: the first and the longest."""

    @abstractmethod
    def send(self, number: int, payload: Payload) -> None:
        """Send sync `number`, replacing any of that number. Raises OSError when it cannot be stored."""

    @abstractmethod
    def receive(self, number: int) -> Arrived | None:
        """Return the reply to sync `number`, None until it has come. Never blocks. A torn reply counts as none.

        Raises FileNotFoundError when the mailbox no longer exists, so no reply will come.
        """

    @abstractmethod
    def fetch(self, name: str, sha256: str) -> Arrived:
        """Return a published chunk. Raises ValueError when its SHA-256 is another, OSError when it cannot be read."""

    def view(self, name: str, sha256: str) -> Piece:
        """Return what `fetch` does, read-only and mapped from the file where the carrier can, which takes no memory of
        this process. Raises as `fetch` does."""
        return self.fetch(name, sha256)

    @abstractmethod
    def beat(self, lease: int, upto: int) -> None:
        """Record that the vertices of lease `lease` before `upto` are trained, where the record survives this process.

        Every call is a new heartbeat, also with the same values. It raises nothing for a broken connection, and is
        cheap enough for every batch: a carrier with expensive heartbeats may drop those within a second of the last.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent."""


class MasterMailboxes(ABC):
    """The master's end of a carrier: the mailboxes of all workers and the published chunks."""

    carries_chunks = True
    """Whether chunks must be written; False for simulated workers that only consume time."""

    longest = sys.maxsize
    """The limit of a sync in bytes. Set by `limit` only."""

    @property
    def more(self) -> bool:
        """True if the last `collect` left messages for the next one, to bound the memory that they take together."""
        return False

    def limit(self, longest: int) -> None:
        """Set the limit of a sync in bytes. A longer one is collected unread, with a problem."""
        self.longest = longest

    @abstractmethod
    def open(self, worker: str) -> None:
        """Create a mailbox before its worker starts. An existing one keeps its messages."""

    @abstractmethod
    def collect(self) -> list[Message]:
        """Return the newest complete, unanswered sync of each worker. Never blocks.

        A worker sends the next sync only after a reply, so an older one is a late duplicate. An invalid message is
        returned with its `problem` until it is discarded. Nothing that a worker does to its mailbox raises.
        """

    @abstractmethod
    def answer(self, worker: str, number: int, payload: Payload) -> None:
        """Reply to a sync. It and all earlier ones are no longer collected."""

    @abstractmethod
    def discard(self, worker: str, number: int) -> None:
        """Drop sync `number` and all earlier ones without a reply."""

    @abstractmethod
    def publish(self, name: str, payload: Payload) -> None:
        """Publish a chunk for workers."""

    def share(self, name: str, path: Path) -> bool:
        """Publish an immutable file like a chunk, without a copy, until it is retracted. Returns False where the
        carrier cannot do that."""
        return False

    @abstractmethod
    def retract(self, name: str) -> None:
        """Remove a published chunk. An unknown name is ignored."""

    @abstractmethod
    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the worker's last heartbeat; None without one, or without a mailbox."""

    @abstractmethod
    def clear(self) -> None:
        """Remove every mailbox."""

    @abstractmethod
    def close(self, worker: str) -> None:
        """Remove a mailbox. Later messages of that worker are lost; the protocol fences them anyway. Idempotent."""

    def stop(self) -> None:  # noqa: B027
        """Stop serving the mailboxes, which stay for the next master. Idempotent."""


Direction = Literal["sync", "reply"]  # worker to master, master to worker
DIRECTIONS: tuple[Direction, ...] = ("sync", "reply")
MAX_MAILBOX_FILES = 64  # an honest worker leaves a handful
SUFFIX = ".safetensors"  # of messages and chunks
HEARTBEAT = "progress"  # file of the last heartbeat: three little-endian int64, lease, upto and number
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
    """Return the content of a heartbeat's file."""
    return _HEARTBEAT.pack(*heartbeat)


def unpack_heartbeat(raw: bytes) -> Heartbeat | None:
    """Return the heartbeat in the content of a file; None where it is torn or out of bounds."""
    if len(raw) != HEARTBEAT_BYTES:
        return None
    heartbeat = Heartbeat(*_HEARTBEAT.unpack(raw))
    return heartbeat if max(map(abs, heartbeat)) <= MAX_INTEGER else None


class Forwarding(MasterMailboxes):
    """Passes every call on to `mailboxes`; a subclass overrides some of them."""

    def __init__(self, mailboxes: MasterMailboxes) -> None:
        self._mailboxes = mailboxes
        self.carries_chunks = mailboxes.carries_chunks

    def limit(self, longest: int) -> None:
        self._mailboxes.limit(longest)

    def open(self, worker: str) -> None:
        self._mailboxes.open(worker)

    def collect(self) -> list[Message]:
        return self._mailboxes.collect()

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        self._mailboxes.answer(worker, number, payload)

    def discard(self, worker: str, number: int) -> None:
        self._mailboxes.discard(worker, number)

    def publish(self, name: str, payload: Payload) -> None:
        self._mailboxes.publish(name, payload)

    def share(self, name: str, path: Path) -> bool:
        return self._mailboxes.share(name, path)

    def retract(self, name: str) -> None:
        self._mailboxes.retract(name)

    def heartbeat(self, worker: str) -> Heartbeat | None:
        return self._mailboxes.heartbeat(worker)

    def clear(self) -> None:
        self._mailboxes.clear()

    def close(self, worker: str) -> None:
        self._mailboxes.close(worker)

    def stop(self) -> None:
        self._mailboxes.stop()
