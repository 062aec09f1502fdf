"""Streams and events of the pretended device, in Python: deferred work runs when it is waited for.

The device computes at once. Copies that do not block are deferred until their stream is waited for, or gets other
work. So a test detects reads of data that has not arrived, and writes to data that is still to be read.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, final


@final
class Stream:
    """A queue of the device. Threads may wait for a stream that others fill."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self._deferred: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbered = 0  # number of the last deferred task
        self._lock = threading.RLock()

    def defer(self, action: Callable[[], None]) -> int:
        """Defer a task until after all earlier ones; return its number."""
        with self._lock:
            self._numbered += 1
            self._deferred.append((self._numbered, action))
            return self._numbered

    def run(self, upto: int | None = None) -> None:
        """Run deferred tasks up to a number."""
        with self._lock:
            while self._deferred and (upto is None or self._deferred[0][0] <= upto):
                self._deferred.popleft()[1]()

    def synchronize(self) -> None:
        self.run()

    def wait_stream(self, other: Stream) -> None:
        upto = other._numbered
        if other is not self:
            self.defer(lambda: other.run(upto))

    def wait_event(self, event: Event) -> None:
        self.defer(event.synchronize)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


@final
class Event:
    """A point in a stream."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self._stream: Stream | None = None
        self._upto = 0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = stream or current()
        self._upto = self._stream._numbered

    def synchronize(self) -> None:
        """Wait for it. A thread without a current device would be given a context on the first GPU: an error here."""
        if threading.current_thread() is not threading.main_thread() and _streams.devices == 0:
            raise RuntimeError("an event was waited for on a thread that has no current device")
        if self._stream is not None:
            self._stream.run(self._upto)

    def query(self) -> bool:
        return self._stream is None or not self._stream._deferred or self._stream._deferred[0][0] > self._upto


class _Streams(threading.local):
    def __init__(self) -> None:
        self.current: Stream | None = None
        self.devices = 0  # number of times that a device was made current


DEFAULT = Stream()
_streams = _Streams()


def current() -> Stream:
    """Return the current stream of this thread."""
    return _streams.current or DEFAULT


@contextlib.contextmanager
def on(stream: Stream) -> Iterator[None]:
    """Make a stream the current one of this thread."""
    before, _streams.current = _streams.current, stream
    try:
        yield
    finally:
        _streams.current = before


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    """Make the device the current one of this thread."""
    _streams.devices += 1
    try:
        yield
    finally:
        _streams.devices -= 1
