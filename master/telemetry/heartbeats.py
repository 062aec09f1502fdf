"""Which workers there are, and when each last gave a sign of life: a message, or a note that it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from master.decisions.staffing import is_silent, patience_s

Note = tuple[int, int]


@dataclass
class _Life:
    """A running worker; times in seconds of the run's clock."""

    heard_s: float
    out_of_reach: bool = False  # the back end has lost sight of it
    asked: bool = False  # its note was read since it was last heard
    note: Note | None = None
    look_s: float = 0.0  # when it is looked at next


@dataclass
class Heartbeats:
    """The workers of one master's life. `noted` reads how far one has come; `limit_s` is how long it may be silent.

    `alive` are queued or running; a held one is not alive, but may be again. Whom to look at when is kept in a heap, so
    that a turn costs those that are nearly silent, and not everybody.
    """

    heartbeat: Callable[[str], Note | None]
    limit_s: float
    known: set[str]
    alive: set[str] = field(default_factory=set)
    spoken: set[str] = field(default_factory=set)
    _lives: dict[str, _Life] = field(default_factory=dict)
    _queued: set[str] = field(default_factory=set)  # alive, and not running
    _looks: list[tuple[float, str]] = field(default_factory=list)  # (when it could be silent for half the limit, who)

    @property
    def waiting(self) -> int:
        """How many are alive and do not run."""
        return len(self._queued)

    def expect(self, worker: str) -> None:
        self.known.add(worker)
        self.alive.add(worker)
        if worker not in self._lives:
            self._queued.add(worker)

    def runs(self, worker: str, now: float) -> None:
        """It was started, or is in reach again."""
        self._lives[worker] = _Life(now)
        self._queued.discard(worker)
        self._look(worker)

    def lost_sight(self, worker: str) -> None:
        if worker in self._lives:
            self._lives[worker].out_of_reach = True
            self._look(worker)

    def heard(self, workers: Iterable[str], now: float) -> None:
        for worker in workers:
            self.spoken.add(worker)
            life = self._lives.get(worker)
            if life is not None:
                life.heard_s, life.asked, life.out_of_reach = now, False, False

    def stops(self, worker: str) -> None:
        """It has ended, or is held, or is given up."""
        self.alive.discard(worker)
        self._queued.discard(worker)
        self._lives.pop(worker, None)

    def silent(self, now: float) -> list[tuple[str, str]]:
        """(worker, reason) of those to give up. A note is read twice at most while a worker is silent: half way through
        the limit, to know what to compare with, and at its end."""
        found, again = [], []
        while self._looks and self._looks[0][0] < now:
            look_s, worker = heappop(self._looks)
            life = self._lives.get(worker)
            if life is None or life.look_s != look_s:
                continue  # it has ended, or another look was planned since
            again.append(worker)
            if now - life.heard_s <= patience_s(self.limit_s, out_of_reach=life.out_of_reach) / 2:
                continue  # it was heard since
            silent, reason = is_silent(life.heard_s, now, self.limit_s, out_of_reach=life.out_of_reach)
            if silent and self.heartbeat(worker) not in (None, life.note):
                self._lives[worker] = _Life(now, life.out_of_reach)  # it trains, though it has not pushed
            elif silent:
                found.append((worker, reason))
            elif not life.asked:
                life.asked, life.note = True, self.heartbeat(worker)
        for worker in again:
            self._look(worker)
        return found

    def _look(self, worker: str) -> None:
        """Plan the next look at a worker: half way to its being silent, then at its end."""
        life = self._lives[worker]
        patience = patience_s(self.limit_s, out_of_reach=life.out_of_reach)
        life.look_s = life.heard_s + (patience if life.asked else patience / 2)
        heappush(self._looks, (life.look_s, worker))
