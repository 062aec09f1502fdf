"""A master's end of a carrier at which the master can be killed: between two answers, two chunks, two mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from gridml.carriers.base import MasterMailboxes
from gridml.carriers.forwarding import Forwarding
from gridml.protocol.payload import Payload

POINTS = ("before-version", "after-version", "after-patch", "before-commit", "after-commit", "after-grants",
          "after-answers", "after-base", "before-base-commit", "after-base-commit", "after-backup",
          "submit", "publish", "answer", "close")  # fmt: skip
"""Where a master may be killed: its own commit points, and whatever it does to the world."""


@final
class CrashPoints(Forwarding):
    """Tells `reached` the name of what is about to be done."""

    def __init__(self, end: MasterMailboxes, reached: Callable[[str], None]) -> None:
        super().__init__(end)
        self._reached = reached

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        self._reached("answer")
        super().answer(worker, number, payload)

    def publish(self, name: str, payload: Payload) -> None:
        self._reached("publish")
        super().publish(name, payload)

    def close(self, worker: str) -> None:
        self._reached("close")
        super().close(worker)
