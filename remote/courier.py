"""Couriers exchange one sync at a time with the master.

`ThreadCourier` does so on a thread, so that training continues during a push; `StepCourier` step by step.
"""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import final

from gridml.carriers.base import WorkerMailbox
from gridml.protocol import bundle
from gridml.protocol.messages import Reply, Sync, reply_from
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.payload import Arrived, Pieces
from gridml.protocol.push import PushContent, ReplicaPart, decode_replica

RESEND_S = 15.0  # a sync without a reply is sent again after this time: it may be lost, and syncs are idempotent
FULL_DISK_S = 1.0  # a sync that could not be stored is sent again after this time


Answer = tuple[Reply, ReplicaPart]  # the reply and its tensors


class Courier(ABC):
    """Sends syncs and receives replies, one at a time: call `post` only after the last reply was taken. Syncs carry the
    name `process` and are numbered from `number`."""

    unanswered: UnansweredPush | None = None  # the push under way, until its reply has come
    gone = False  # True if the mailbox no longer exists: the master has given this worker up
    last_push_s = 0.0  # CPU seconds of sending the last push and decoding its reply
    last_travel_s = 0.0  # seconds from sending the last push to its reply

    def __init__(self, carrier: WorkerMailbox, clock: Callable[[], float], number: int, process: str) -> None:
        self._carrier = carrier
        self._process = process
        self._clock = clock
        self._number = number - 1  # of the last message
        self._payload: Pieces | None = None  # of the sync under way; None once its reply is taken
        self._posted_s = 0.0  # time at which the sync under way was posted
        self._again_s = 0.0  # time at which it is sent again

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True from `post` until the reply is taken."""

    @abstractmethod
    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        """Send `sync` with the tensors that `content()` returns. `content` may be called on another thread."""

    @abstractmethod
    def take(self) -> Answer | None:
        """Return the reply if it has come, else None. After a reply, another sync may be posted. Never blocks."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Block for `seconds`, or until a reply has come."""

    @abstractmethod
    def close(self) -> None:
        """Stop. Idempotent."""

    def _begin(self, sync: Sync, content: PushContent) -> None:
        """Send a sync for the first time."""
        self._number += 1
        message = UnansweredPush(self._number, sync._replace(process=self._process), content)
        self._payload = message.payload
        self.unanswered = message if sync.push is not None else None
        self._posted_s = self._again_s = self._clock()
        self._send()

    def _send(self) -> None:
        if self._payload is None or self._clock() < self._again_s:
            return
        try:
            self._carrier.send(self._number, self._payload)
            self._again_s = self._clock() + RESEND_S
        except FileNotFoundError:
            self.gone = True
        except OSError:  # such as a full disk: retry; the push stays in memory
            self._again_s = self._clock() + FULL_DISK_S

    def _poll(self) -> Answer | None:
        """Return the reply if it has come. Otherwise send the sync again when that is due."""
        try:
            payload = self._carrier.receive(self._number)
        except FileNotFoundError:
            self.gone = True
            return None
        reply = None if payload is None else opened(payload, self._process, self._carrier)
        if reply is None:
            self._send()
        elif self.unanswered is not None:
            self.last_travel_s = self._clock() - self._posted_s
        return reply


@final
class ThreadCourier(Courier):
    """Exchanges each sync on a new thread, in real time. `take` raises the errors of that thread."""

    def __init__(
        self,
        carrier: WorkerMailbox,
        number: int = 1,
        prepare: Callable[[ReplicaPart], ReplicaPart] = lambda part: part,
    ) -> None:
        super().__init__(carrier, time.perf_counter, number, secrets.token_hex(4))
        self._prepare = prepare  # called on the thread for the replica in a reply
        self._under_way: Future[Answer | None] | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def busy(self) -> bool:
        return self._under_way is not None

    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        assert not self.busy, "one sync at a time"
        self._under_way = Future()
        work = self._under_way, sync, content
        self._thread = threading.Thread(target=self._carry, args=work, name="courier", daemon=True)
        self._thread.start()

    def take(self) -> Answer | None:
        if self._under_way is None or not self._under_way.done():
            return None
        answer = self._under_way.result()
        self._under_way = None
        return answer

    def wait(self, seconds: float) -> None:
        if self._under_way is None:
            self._closed.wait(seconds)
        else:
            futures.wait([self._under_way], seconds)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _carry(self, under_way: Future[Answer | None], sync: Sync, content: Callable[[], PushContent]) -> None:
        """Exchange one sync. The exchange is a separate method, so that its large local variables are freed when it
        returns."""
        try:
            answer = self._exchange(sync, content)
        except Exception as error:  # if it were not caught, the worker's main thread would wait forever
            self.gone = True
            under_way.set_exception(error)
        else:
            self.gone = answer is None
            under_way.set_result(answer)

    def _exchange(self, sync: Sync, content: Callable[[], PushContent]) -> Answer | None:
        """Send a sync until its reply comes, and return the reply; None if no reply will come."""
        began = time.thread_time()
        self._begin(sync, content())
        step, longest = self._carrier.poll_s
        while not (self._closed.is_set() or self.gone):
            if (answer := self._poll()) is not None:
                if self.unanswered is not None:
                    self.last_push_s = time.thread_time() - began
                self._payload = self.unanswered = None
                return answer[0], self._prepare(answer[1])
            self._carrier.wait(step, self._closed.wait)
            step = min(longest, step * 1.5)
        return None


@final
class StepCourier(Courier):
    """Exchanges syncs without a thread, by an injected clock, for simulations and tests.

    The driver advances the clock, so `wait` does not block: it only sends a sync again when that is due.
    """

    def __init__(
        self, carrier: WorkerMailbox, clock: Callable[[], float], number: int = 1, process: str = "only"
    ) -> None:
        super().__init__(carrier, clock, number, process)
        self._reply: Answer | None = None

    @property
    def busy(self) -> bool:
        return self._payload is not None

    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        assert not self.busy, "one sync at a time"
        self._begin(sync, content())

    def poll(self) -> None:
        """Receive the reply if it has come, and keep it until `take`. Otherwise send the sync again when due."""
        if self._payload is not None and self._reply is None:
            self._reply = self._poll()

    def take(self) -> Answer | None:
        self.poll()
        reply, self._reply = self._reply, None
        if reply is not None:
            self._payload = self.unanswered = None
        return reply

    def wait(self, seconds: float) -> None:
        self._send()

    def close(self) -> None:
        self._payload = None


def opened(payload: Arrived, process: str, carrier: WorkerMailbox) -> Answer | None:
    """Return the reply in a payload, with its tensors from the payload and from published files.

    Return None for a reply to an earlier process of this worker, and if a published file is unavailable: the sync is
    sent again and gets a new reply.

    Raises ValueError for an invalid reply.
    """
    message, tensors = bundle.opened(payload)
    reply = reply_from(message)
    if reply.process != process:
        return None
    if reply.stored is not None:
        try:
            _, stored = bundle.opened(carrier.view(reply.stored.name, reply.stored.sha256))
        except (OSError, ValueError):
            return None
        tensors |= {name: stored[name] for name in reply.stored.tensors}
    return reply, decode_replica(tensors)
