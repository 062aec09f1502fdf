"""The courier: a thread that carries one sync at a time, so that training goes on while a push travels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from gridml import bundle
from gridml.carriers.base import WorkerEnd
from gridml.messages import Reply, Sync, reply_from, to_json

Tensors = dict[str, NDArray[Any]]
POLL_S = (0.001, 0.02)  # how often to look for a reply: at first, and at most
RESEND_S = 15.0  # a sync without a reply is sent again: the carrier may have lost it, and syncs are idempotent


class Courier:
    """Carries syncs and brings replies. At most one is under way; `post` must not be called before its reply was
    taken."""

    def __init__(self, carrier: WorkerEnd, first_number: int = 1) -> None:
        self._carrier = carrier
        self._number = first_number
        self._outgoing: tuple[Sync, Callable[[], Tensors]] | None = None
        self._reply: tuple[Reply, Tensors] | None = None
        self._changed = threading.Condition()
        self._closed = False
        self.gone = False  # the mailbox does not exist any more: the master has given this worker up
        self.last_push_s = 0.0  # CPU seconds that carrying the last push cost
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._outgoing is not None or self._reply is not None

    def post(self, sync: Sync, tensors: Callable[[], Tensors]) -> None:
        """Send `sync` with what `tensors()` gives; that is called on the courier's thread."""
        with self._changed:
            assert not self.busy, "one sync at a time"
            self._outgoing = (sync, tensors)
            self._changed.notify_all()

    def take(self, timeout_s: float = 0.0) -> tuple[Reply, Tensors] | None:
        """The reply, if it has come within `timeout_s`; afterwards another sync may be posted."""
        if timeout_s <= 0 and self._reply is None:
            return None  # without the lock: this is asked between any two batches
        with self._changed:
            self._changed.wait_for(lambda: self._reply is not None or self.gone, timeout_s)
            reply, self._reply = self._reply, None
            return reply

    def rest(self, seconds: float) -> None:
        """Wait before asking again."""
        self._pause(seconds)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outgoing is not None or self._closed)
                if self._outgoing is None:
                    return
                sync, tensors = self._outgoing
            reply = self._exchange(sync, tensors)
            with self._changed:
                self._outgoing, self._reply = None, reply
                self.gone = reply is None
                self._changed.notify_all()
                if reply is None:
                    return

    def _exchange(self, sync: Sync, tensors: Callable[[], Tensors]) -> tuple[Reply, Tensors] | None:
        """Send until there is a reply; None when there will be none."""
        number, self._number = self._number, self._number + 1
        began = time.thread_time()
        payload = bundle.encode(to_json(sync), tensors())
        while not self._closed:
            try:
                self._carrier.send(number, payload)
            except FileNotFoundError:
                return None
            except OSError:  # a full disk: what was trained is kept in memory and sent when there is room again
                self._pause(1.0)
                continue
            if sync.push is not None:
                self.last_push_s = time.thread_time() - began
            found = self._await(number)
            if found is not None:
                return found
        return None

    def _await(self, number: int) -> tuple[Reply, Tensors] | None:
        waited, step = 0.0, POLL_S[0]
        while waited < RESEND_S and not self._closed:
            payload = self._carrier.receive(number)
            if payload is not None:
                message, tensors = bundle.decode(payload)
                return reply_from(message), tensors
            self._pause(step)
            waited += step
            step = min(POLL_S[1], step * 1.5)
        return None

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)
