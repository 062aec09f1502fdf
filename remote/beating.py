"""A heartbeat that goes on while its process lives, however long f takes for a batch.

It stops with the process, and when an extension holds Python's lock: to the master that is silence, too.
"""

from __future__ import annotations

import threading
from typing import final

from gridml.carriers.base import BEGUN, WorkerMailbox
from gridml.protocol.payload import Arrived, Payload, Piece

BEAT_S = 0.5  # between two heartbeats of one batch: the shortest silence that may be asked for has ten of them


@final
class Beating(WorkerMailbox):
    """A worker's mailbox that says its last heartbeat again every `every_s` seconds, on a thread of its own."""

    def __init__(self, mailbox: WorkerMailbox, every_s: float = BEAT_S) -> None:
        self.poll_s = mailbox.poll_s
        self._mailbox = mailbox
        self._every_s = every_s
        self._newest = BEGUN, 0
        self._one_at_a_time = threading.Lock()  # an older heartbeat must not come after a newer one
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="beating", daemon=True)
        self._thread.start()

    def send(self, number: int, payload: Payload) -> None:
        self._mailbox.send(number, payload)

    def receive(self, number: int) -> Arrived | None:
        return self._mailbox.receive(number)

    def fetch(self, name: str, sha256: str) -> Arrived:
        return self._mailbox.fetch(name, sha256)

    def view(self, name: str, sha256: str) -> Piece:
        return self._mailbox.view(name, sha256)

    def beat(self, lease: int, upto: int) -> None:
        with self._one_at_a_time:
            self._newest = lease, upto
            self._mailbox.beat(lease, upto)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._mailbox.close()

    def _work(self) -> None:
        while True:
            with self._one_at_a_time:
                self._mailbox.beat(*self._newest)
            if self._closed.wait(self._every_s):
                return
