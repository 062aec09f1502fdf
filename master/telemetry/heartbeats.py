"""When to look whether a worker that says nothing still lives, and still trains: its heartbeat shows both."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from gridml.carriers.base import Heartbeat
from master.decisions.failures import GivenUpFor
from master.decisions.staffing import is_silent, is_stuck, patience_s
from master.records import Lost, Standing, WorkerRecord, WorkerTable

STARTS_S = 30.0  # that a worker may take to say its first word, however short a silence is asked for
MOST_DOUBLINGS = 6  # of the silence that is borne: two hours, of the usual two minutes


class Heartbeats:
    """Finds the silent ones and the stuck ones among the workers that run. `read` reads the heartbeat of one; `limit_s`
    is how long it may be silent, and `doublings` how often that is doubled for the range it trains: f may hold Python's
    lock for long there, so that whoever gets it falls silent.

    Whom to look at when is kept in a heap, so that a turn costs those that are nearly silent, and not everybody.
    """

    def __init__(
        self,
        workers: WorkerTable,
        read: Callable[[str], Heartbeat | None],
        limit_s: float,
        doublings: Callable[[str], int] = lambda worker: 0,
    ) -> None:
        self._workers = workers
        self._read = read
        self._limit_s = limit_s
        self._doublings = doublings
        self._looks: list[tuple[float, str]] = []  # (when it could be silent for half the limit, who)

    def watch(self, record: WorkerRecord, now: float) -> None:
        """Begin to watch a worker that was started, or is in reach again."""
        record.show_life(now)
        record.heartbeat = None
        self._plan(record)

    def lose_sight(self, record: WorkerRecord) -> None:
        """Be less patient with a running worker that the back end has lost sight of."""
        if record.standing is Standing.RUNNING:
            record.out_of_reach = True
            self._plan(record)

    def lost(self, now: float) -> list[Lost]:
        """Return those to give up. A heartbeat is read twice at most while a worker says nothing for as long as it may
        be silent: half way through that, to know what to compare with, and at its end."""
        lost, again = [], []
        while self._looks and self._looks[0][0] < now:
            look_s, name = heappop(self._looks)
            record = self._workers.get(name)
            if record is None or record.standing is not Standing.RUNNING or record.look_s != look_s:
                continue  # it runs no more, or another look was planned since
            again.append(record)
            limit_s = self._limit(record)
            if now - record.sign_s <= patience_s(limit_s, out_of_reach=record.out_of_reach) / 2:
                continue  # it was heard since
            silent, reason = is_silent(record.sign_s, now, limit_s, out_of_reach=record.out_of_reach)
            heartbeat = self._read(name) if silent or not record.heartbeat_read else None
            if silent and heartbeat not in (None, record.heartbeat):
                assert heartbeat is not None
                record.show_heartbeat(heartbeat, now)
                stuck, reason = is_stuck(record.headway_s, now, self._limit_s)
                if stuck:
                    lost.append(Lost(record, GivenUpFor.NO_HEADWAY, reason))
            elif silent:
                lost.append(Lost(record, GivenUpFor.SILENCE, reason))
            elif not record.heartbeat_read:
                record.heartbeat_read, record.heartbeat = True, heartbeat
        for record in again:
            self._plan(record)
        return lost

    def _limit(self, record: WorkerRecord) -> float:
        """How long a worker may be silent; while it starts it has no heartbeat yet."""
        least_s = 0.0 if record.spoke else STARTS_S
        return max(least_s, self._limit_s * 2.0 ** min(self._doublings(record.name), MOST_DOUBLINGS))

    def _plan(self, record: WorkerRecord) -> None:
        """Plan the next look at a worker: half way to its being silent, then at its end."""
        patience = patience_s(self._limit(record), out_of_reach=record.out_of_reach)
        record.look_s = record.sign_s + (patience if record.heartbeat_read else patience / 2)
        heappush(self._looks, (record.look_s, record.name))
