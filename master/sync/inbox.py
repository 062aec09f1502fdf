"""Inbox: decodes messages within their limits, returns the newest message of each worker, and keeps unreadable messages
as dead letters."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from gridml.carriers.base import MasterMailboxes, Message
from gridml.protocol import bundle
from gridml.protocol.foreign import described, printable
from gridml.protocol.push import NOTHING, Codec, MalformedPush
from master.ports.mailboxes import MessageLimits
from master.state.failures import GiveUpReason
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.sync.pushes import after_unreadable
from master.sync.rows import Malformed, PendingReply

#: Maximum number of dead letters; one more replaces the oldest.
MAX_MESSAGES = 16
#: Maximum bytes of a dead letter; the rest is cut off. This is enough for a diagnosis, and no worker can fill the disk.
MAX_MESSAGE_BYTES = 1 << 24


class Inbox:
    """Decodes messages within `limits` and keeps those that cannot be merged for a person to inspect."""

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
        """Return (the newest message of each worker, decoded; all malformed messages)."""
        newest: dict[str, PendingReply] = {}
        malformed = []
        for message in messages:
            pending = self._open(message)
            if isinstance(pending, Malformed):
                malformed.append(pending)
            elif message.number < pending.record.held.number:
                # A worker sends its next message only after a reply, so an older number is a late copy. Handling it
                # would overwrite the master's knowledge of what the worker holds.
                self.discard(message)
            else:
                newest[message.worker] = pending
        return list(newest.values()), malformed

    def discard(self, message: Message) -> None:
        """Remove a message without replying to it."""
        self._mailboxes.discard(message.worker, message.number)

    def hold(self, message: Message) -> None:
        """Keep a message whose reply comes later."""
        self._mailboxes.hold(message.worker, message.number)

    def keep(self, message: Message, record: WorkerRecord, reason: str) -> None:
        """Count a message that cannot be merged against its worker, but not its machine. Keep it unless it is damaged.

        For damaged messages, an event is recorded only for the first, tenth, hundredth, ... message of a worker,
        because it can send any number of them. Must be called inside a transaction.
        """
        contact, kind = record.contact, "damaged" if message.is_damaged else "malformed"
        if message.is_damaged:
            contact.damaged += 1
        else:
            self._dead_letters.keep(message, reason)
            contact.malformed += 1
        tolerated, why = after_unreadable(contact.malformed, contact.damaged, contact.whole)
        if not (message.is_damaged and tolerated and str(contact.damaged).strip("0") != "1"):
            facts = {"worker": record.name, "machine": record.machine, "messages": contact.malformed + contact.damaged}
            self._events.record("warning", facts, f"{record.name} sent a {kind} message: {reason}; {why}")
        if not tolerated and self._workers.is_current(record):
            self._workers.lose(record, GiveUpReason.MALFORMED, why)

    def _open(self, message: Message) -> PendingReply | Malformed:
        """Decode a message within its limits. Never raises, whatever the message holds."""
        record = self._workers.of(message.worker)
        if message.problem:
            return Malformed(message, record, message.problem)
        problem = None
        try:
            record.contact.whole += 1
            sync, content = self._codec.read(message.payload, self.limits.header)
        except MalformedPush as error:
            sync, content, problem = error.sync, NOTHING, str(error)
        except Exception as error:  # the payload is at fault, because nothing else has been read
            return Malformed(message, record, described(error))
        if sync.worker != message.worker:
            return Malformed(message, record, f"its sender is given as {sync.worker}")
        return PendingReply(message, sync, content, record, problem, len(message.payload))


class DeadLetters:
    """The last messages that could not be merged, in `folder`: `00.message`, and the reason in `00.txt`.

    The folder is created with the first message.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0

    def keep(self, message: Message, reason: str) -> None:
        """Write a message and its reason. A full disk is ignored, because dead letters only serve a person."""
        place = self._folder / f"{self._next:02d}"
        self._next = (self._next + 1) % MAX_MESSAGES
        words = f"message {message.number} of {message.worker}, {len(message.payload):,} bytes: {reason}\n"
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(place.with_suffix(".txt"), printable(words).encode(), durable=False)
            kept = message.payload[:MAX_MESSAGE_BYTES]
            bundle.write_atomic(place.with_suffix(".message"), bytes(kept), durable=False)
