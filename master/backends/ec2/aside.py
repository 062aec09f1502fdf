"""Calls that take a while, beside the master's loop: it never waits for an answer of AWS."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Aside:
    """At most one call of a name is under way; its answer is kept until it is asked for."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: dict[str, Future[Any]] = {}

    def busy(self, name: str) -> bool:
        """Whether a call of this name is under way, or its answer was not taken yet."""
        return name in self._calls

    def begin(self, name: str, call: Callable[[], Any]) -> None:
        """Make a call. There must be none of this name."""
        assert name not in self._calls
        self._calls[name] = self._executor.submit(call)

    def take(self, name: str) -> Future[Any] | None:
        """The answer of a call that is done, once; None while there is none, and for one that was forgotten."""
        call = self._calls.get(name)
        if call is None or not call.done():
            return None
        del self._calls[name]
        return None if call.cancelled() else call

    def close(self) -> None:
        """Wait for the call that has begun, forget those that have not. Idempotent."""
        self._executor.shutdown(wait=True, cancel_futures=True)
