"""Messages of workers as they come in: opened within their bounds, the newest of each worker; the others set aside."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from gridml.carriers.base import MasterMailboxes, Message
from gridml.protocol import bundle
from gridml.protocol.codec import Codec, MalformedPush
from gridml.protocol.foreign import described, printable
from gridml.protocol.push import NOTHING
from master.ports.mailboxes import MessageLimits
from master.state.failures import GivenUpFor
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.sync.pushes import after_malformed
from master.sync.rows import Malformed, PendingReply

MAX_MESSAGES = 16  # messages; the next one takes the place of the oldest
MAX_MESSAGE_BYTES = 1 << 24  # bytes of a message that are kept


class Inbox:
    """Opens messages within `limits`, and keeps those that could not be taken."""

    def __init__(
        self,
        workers: WorkerTable,
        mailboxes: MasterMailboxes,
        codec: Codec,
        limits: MessageLimits,
        dead_letters: DeadLetters,
        events: Events,
    ) -> None:
        self.limits = limits
        self._workers = workers
        self._mailboxes = mailboxes
        self._codec = codec
        self._dead_letters = dead_letters
        self._events = events

    def open(self, messages: Sequence[Message]) -> tuple[list[PendingReply], list[Malformed]]:
        """Return the newest message of each worker, opened; and all that make no sense.

        A worker writes again only when it has been answered, so an older message is a late copy. It must not be heard:
        it would say that the worker lacks what it was given since.
        """
        newest: dict[str, PendingReply] = {}
        malformed = []
        for message in messages:
            pending = self._open(message)
            if isinstance(pending, Malformed):
                malformed.append(pending)
            elif message.number < pending.record.held.number:
                self.discard(message)
            else:
                newest[message.worker] = pending
        return list(newest.values()), malformed

    def discard(self, message: Message) -> None:
        """Remove a message that is not answered."""
        self._mailboxes.discard(message.worker, message.number)

    def keep(self, message: Message, record: WorkerRecord, reason: str) -> None:
        """Keep a message that could not be taken, and count it against its worker alone. Must be called inside a
        transaction."""
        self._dead_letters.keep(message, reason)
        record.contact.malformed += 1
        heard, why = after_malformed(record.contact.malformed)
        facts = {"worker": record.name, "machine": record.machine, "messages": record.contact.malformed}
        self._events.record("warning", facts, f"{record.name} sent what makes no sense: {reason}; {why}")
        if not heard and self._workers.expects(record):
            self._workers.lose(record, GivenUpFor.NONSENSE, why)

    def _open(self, message: Message) -> PendingReply | Malformed:
        """A message's content, within its bounds. Whatever it holds, nothing raises."""
        record = self._workers.of(message.worker)
        if message.problem:
            return Malformed(message, record, message.problem)
        problem = None
        try:
            sync, content = self._codec.read(message.payload, self.limits.header)
        except MalformedPush as error:
            sync, content, problem = error.sync, NOTHING, str(error)
        except Exception as error:  # of the payload alone: nothing else has been looked at
            return Malformed(message, record, described(error))
        if sync.worker != message.worker:
            return Malformed(message, record, f"it speaks for {sync.worker}")
        return PendingReply(message, sync, content, record, problem, len(message.payload))


class DeadLetters:
    """The last few messages in `folder`, which is made for the first: `03.message`, and why in `03.txt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0

    def keep(self, message: Message, reason: str) -> None:
        """Keep a message. A disk that has no room for it is no reason to stop."""
        place = self._folder / f"{self._next:02d}"
        self._next = (self._next + 1) % MAX_MESSAGES
        words = f"message {message.number} of {message.worker}, {len(message.payload):,} bytes: {reason}\n"
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(place.with_suffix(".txt"), printable(words).encode(), durable=False)
            kept = message.payload[:MAX_MESSAGE_BYTES]
            bundle.write_atomic(place.with_suffix(".message"), bytes(kept), durable=False)
