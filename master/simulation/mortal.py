"""A master's end of a carrier at which the master can be killed: between two answers, two chunks, two mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from gridml.carriers.base import Letter, MasterEnd

POINTS = ("before-version", "after-version", "after-patch", "before-commit", "after-commit", "after-grants",
          "after-answers", "submit", "publish", "answer", "close")  # fmt: skip
"""Where a master may be killed: its own commit points, and whatever it does to the world."""


@final
class Mortal(MasterEnd):
    """Tells `reached` the name of what is about to be done."""

    def __init__(self, end: MasterEnd, reached: Callable[[str], None]) -> None:
        self._end = end
        self._reached = reached
        self.carries_chunks = end.carries_chunks

    def open(self, worker: str) -> None:
        self._end.open(worker)

    def collect(self) -> list[Letter]:
        return self._end.collect()

    def answer(self, worker: str, number: int, payload: bytes) -> None:
        self._reached("answer")
        self._end.answer(worker, number, payload)

    def discard(self, worker: str, number: int) -> None:
        self._end.discard(worker, number)

    def publish(self, name: str, payload: bytes) -> None:
        self._reached("publish")
        self._end.publish(name, payload)

    def retract(self, name: str) -> None:
        self._end.retract(name)

    def noted(self, worker: str) -> tuple[int, int] | None:
        return self._end.noted(worker)

    def clear(self) -> None:
        self._end.clear()

    def close(self, worker: str) -> None:
        self._reached("close")
        self._end.close(worker)
