"""Mailboxes that pass every call on to others: for those that add something to a few calls."""

from __future__ import annotations

from pathlib import Path

from gridml.carriers.base import Heartbeat, MasterMailboxes, Message
from gridml.protocol.payload import Payload


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
