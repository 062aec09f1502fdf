"""The contract of a carrier: it moves numbered payloads between a worker and the master, and chunks to workers.

A carrier may lose, delay, repeat or reorder payloads. It must not deliver an altered or a torn one: the SHA-256
beside each shows it. A payload that is sent may lie in memory that others own (`Pieces`); it is read before the
call returns. Everything else, from exactly-once credit to fencing, belongs to the protocol. The contract as checks
is `gridml.testing.carriers`.

The files of a mailbox are named alike in every carrier: `<direction>-<number>-<sha256>.safetensors`. Files appear
by rename, so a reader sees a whole file or none; the digest in the name shows damage all the same. `Forwarding`
passes every call on to other mailboxes, for carriers that add something to a few calls.
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
    """A sync as it reached the master; where `problem` says why none could be read, the payload is empty. What
    concerns a mailbox as a whole has number 0, which no sync has."""

    worker: str
    number: int
    payload: Arrived
    problem: str = ""


BEGUN, LEFT = 0, -1  # in place of the number of a lease, which is 1 or more


class Heartbeat(NamedTuple):
    """What a worker's process last recorded of itself: vertices below `upto` of lease number `lease` are trained, or it
    has only BEGUN its life, or has LEFT. It is its heartbeat `number`: another one shows that the process lives."""

    lease: int
    upto: int
    number: int


class WorkerMailbox(ABC):
    """What a worker holds. It starts every exchange; nothing ever connects to it."""

    poll_s: tuple[float, float] = (0.005, 0.02)
    """Seconds between two looks for a reply, at first and at most."""

    @abstractmethod
    def send(self, number: int, payload: Payload) -> None:
        """Send sync `number`; sending a number again replaces it. Raises OSError when it cannot be stored."""

    @abstractmethod
    def receive(self, number: int) -> Arrived | None:
        """Return the reply to sync `number`, None while there is none; never block. A torn reply counts as none.

        Raises FileNotFoundError when the mailbox does not exist any more: there will be no reply.
        """

    @abstractmethod
    def fetch(self, name: str, sha256: str) -> Arrived:
        """Return a published chunk. Raises ValueError when its SHA-256 is another, OSError when it cannot be read."""

    def view(self, name: str, sha256: str) -> Piece:
        """Return what `fetch` does, perhaps on the memory of its file and not to be written to: it then takes none of
        this process's own. Raises as `fetch` does."""
        return self.fetch(name, sha256)

    @abstractmethod
    def beat(self, lease: int, upto: int) -> None:
        """Record that vertices below `upto` of lease number `lease` are trained, where it survives this process.

        Said again it is another heartbeat, and a sign of life.
        Raises nothing that a broken line causes, and is cheap enough for every batch: a carrier to which a heartbeat
        costs more may leave out those that come within a second of the last one.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is held. Idempotent."""


class MasterMailboxes(ABC):
    """What the master holds: the mailboxes of all workers and the published chunks."""

    carries_chunks = True
    """Whether chunks are worth cutting: not where workers only pass the time."""

    longest = sys.maxsize
    """Bytes of the longest sync that is read."""

    @property
    def more(self) -> bool:
        """Whether some that had arrived at the last `collect` are left for the next, because together they are more
        than memory should hold."""
        return False

    def limit(self, longest: int) -> None:
        """Read no sync of more than `longest` bytes from now on: such a one is collected with a problem, unread."""
        self.longest = longest

    @abstractmethod
    def open(self, worker: str) -> None:
        """Make a mailbox, before the worker starts; one that is there is kept with what is in it."""

    @abstractmethod
    def collect(self) -> list[Message]:
        """Return the newest sync of each worker that arrived whole and is not yet answered; never block.

        A worker writes again only when it has been answered, so an older one is a late copy. What cannot be a sync is
        returned with its `problem` until it is discarded; nothing that a worker does to its mailbox raises.
        """

    @abstractmethod
    def answer(self, worker: str, number: int, payload: Payload) -> None:
        """Reply to a sync, which is then no longer collected, nor are those before it."""

    @abstractmethod
    def discard(self, worker: str, number: int) -> None:
        """Collect sync `number`, and those before it, no longer; answer nothing."""

    @abstractmethod
    def publish(self, name: str, payload: Payload) -> None:
        """Make a chunk available to workers."""

    def share(self, name: str, path: Path) -> bool:
        """Make a file that will not change available as a chunk is, without a copy of it, until it is retracted; return
        False where that cannot be."""
        return False

    @abstractmethod
    def retract(self, name: str) -> None:
        """Take a chunk away. A name that is not there is ignored."""

    @abstractmethod
    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the worker's last heartbeat, None when it never did or has no mailbox."""

    @abstractmethod
    def clear(self) -> None:
        """Remove every mailbox."""

    @abstractmethod
    def close(self, worker: str) -> None:
        """Remove a mailbox: what arrives later from that worker is lost, and was fenced anyway. Idempotent."""

    def stop(self) -> None:  # noqa: B027
        """End what serves the mailboxes, which stay for the next master. Idempotent."""


Direction = Literal["sync", "reply"]  # worker to master, master to worker
DIRECTIONS: tuple[Direction, ...] = ("sync", "reply")
MAX_MAILBOX_FILES = 64  # files in a mailbox at most; an honest worker leaves a handful there
SUFFIX = ".safetensors"  # of chunks too
HEARTBEAT = "progress"  # the file with a worker's last heartbeat: three int64, lease, upto and number
_MESSAGE = re.compile(r"(sync|reply)-(\d{8})-([0-9a-f]{64})\.safetensors")
_HEARTBEAT = struct.Struct("<qqq")
HEARTBEAT_BYTES = _HEARTBEAT.size


class MessageFile(NamedTuple):
    """What the name of a message's file says."""

    number: int
    name: str
    sha256: str


def name_of(direction: Direction, number: int, sha256: str) -> str:
    """Return the name of the file of a message of that SHA-256."""
    return f"{direction}-{number:08d}-{sha256}{SUFFIX}"


def message_files(names: Iterable[str], direction: Direction) -> list[MessageFile]:
    """Return the messages of one direction among the names in a mailbox, oldest first; pass over other names."""
    matches = [match for name in names if (match := _MESSAGE.fullmatch(name)) and match[1] == direction]
    return sorted(MessageFile(int(match[2]), match[0], match[3]) for match in matches)


def pack_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the content of a heartbeat's file."""
    return _HEARTBEAT.pack(*heartbeat)


def unpack_heartbeat(raw: bytes) -> Heartbeat | None:
    """Return the heartbeat in a file, None for what is not whole, or cannot be."""
    if len(raw) != HEARTBEAT_BYTES:
        return None
    heartbeat = Heartbeat(*_HEARTBEAT.unpack(raw))
    return heartbeat if max(map(abs, heartbeat)) <= MAX_INTEGER else None


class Forwarding(MasterMailboxes):
    """Does what `mailboxes` does; a subclass overrides the calls to which it adds something."""

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
