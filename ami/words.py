"""What comes to the daemon while it waits: that it is to leave, and that its worker has ended."""

from __future__ import annotations

import queue
from dataclasses import dataclass


@dataclass(frozen=True)
class Leave:
    """The instance is to stop working; `evicted` where EC2 takes it, whatever it does."""

    why: str
    evicted: bool = False


@dataclass(frozen=True)
class Ended:
    """The worker's process has ended, with its exit status and the last lines that it wrote."""

    status: int
    output: str

    @property
    def last_words(self) -> str:
        """The last of the lines."""
        return self.output.rpartition("\n")[2]


class Words:
    """Said by signal handlers and threads, heard by the daemon's one loop. That it is to leave stays said."""

    def __init__(self) -> None:
        # Its put() may interrupt itself and get(), which an Event's set() in a signal handler may not.
        self._queue: queue.SimpleQueue[Leave | Ended] = queue.SimpleQueue()
        self._leave: Leave | None = None
        self._going_down = False

    @property
    def going_down(self) -> bool:
        """Whether the system is: somebody said so who is not EC2's notice."""
        return self.leave is not None and self._going_down

    @property
    def leave(self) -> Leave | None:
        """That the instance is to leave, None as long as nobody has said so. Not for while a worker runs: it would not
        be heard to end."""
        while True:
            try:
                self._keep(self._queue.get_nowait())
            except queue.Empty:
                return self._leave

    def say(self, word: Leave | Ended) -> None:
        self._queue.put(word)

    def hear(self, within_s: float | None = None) -> Leave | Ended | None:
        """The next word; None when none comes within so many seconds."""
        try:
            word = self._queue.get(timeout=within_s)
        except queue.Empty:
            return None
        self._keep(word)
        return word

    def pause(self, seconds: float) -> Leave | None:
        """Let so much time pass, or less where the instance is to leave: then return that."""
        return self.leave or (self._leave if self.hear(seconds) else None)

    def _keep(self, word: Leave | Ended) -> None:
        if not isinstance(word, Leave):
            return
        self._going_down = self._going_down or not word.evicted
        if self._leave is None or word.evicted:  # a notice tells more than a signal
            self._leave = word
