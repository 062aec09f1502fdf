"""A master's end that passes everything on to another one: for ends that add something to a few of its calls."""

from __future__ import annotations

from gridml.carriers.base import MasterMailboxes, Message


class Forwarding(MasterMailboxes):
    """Does what `end` does."""

    def __init__(self, end: MasterMailboxes) -> None:
        self._end = end
        self.carries_chunks = end.carries_chunks

    def open(self, worker: str) -> None:
        self._end.open(worker)

    def collect(self) -> list[Message]:
        return self._end.collect()

    def answer(self, worker: str, number: int, payload: bytes) -> None:
        self._end.answer(worker, number, payload)

    def discard(self, worker: str, number: int) -> None:
        self._end.discard(worker, number)

    def publish(self, name: str, payload: bytes) -> None:
        self._end.publish(name, payload)

    def retract(self, name: str) -> None:
        self._end.retract(name)

    def heartbeat(self, worker: str) -> tuple[int, int] | None:
        return self._end.heartbeat(worker)

    def clear(self) -> None:
        self._end.clear()

    def close(self, worker: str) -> None:
        self._end.close(worker)

    def stop(self) -> None:
        self._end.stop()
