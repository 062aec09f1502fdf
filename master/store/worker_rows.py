"""The rows of a ledger about workers and machines: what became of them, what they said, what counts against them."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Collection
from typing import Any

from gridml.protocol.bounds import LARGEST
from gridml.protocol.messages import Failure, Sync
from master.backends.base import JobEvent, State
from master.decisions.gate import Altered
from master.machines import MachineRecord
from master.records import LeaseState
from master.store.status import ORPHANED
from master.store.write_batch import WriteBatch


class WorkerRows:
    """The part of a `Ledger` that nothing is mirrored of. Methods that write must be called inside a transaction."""

    _db: sqlite3.Connection
    _batch: WriteBatch

    def worker_submitted(self, worker: str, at_s: float) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO workers (worker, state, submitted_s) VALUES (?, ?, ?)",
            (worker, State.QUEUED.value, at_s),
        )

    def worker_event(self, event: JobEvent, at_s: float) -> None:
        """Write down what the back end said of a worker."""
        started = at_s if event.state is State.RUNNING else None
        ended = at_s if event.state.ended else None
        self._db.execute(
            "UPDATE workers SET state = ?, machine = ?, detail = ?, graceful = ?, cancelled = ?, "
            "pid = coalesce(?, pid), started_s = coalesce(started_s, ?), ended_s = ? WHERE worker = ?",
            (
                event.state.value,
                event.machine,
                event.detail,
                event.graceful,
                event.cancelled,
                event.pid,
                started,
                ended,
                event.worker,
            ),
        )

    def orphan_workers(self, at_s: float, *, but: Collection[str] = ()) -> None:
        """Workers that an earlier master left behind are nobody's any more, `but` those that live on."""
        orphans = [w for (w,) in self._db.execute("SELECT worker FROM workers WHERE ended_s IS NULL") if w not in but]
        self._db.executemany(
            "UPDATE workers SET state = ?, detail = ?, ended_s = ? WHERE worker = ?",
            [(State.LOST.value, ORPHANED, at_s, worker) for worker in orphans],
        )

    def worker_reported(self, sync: Sync, at_s: float, bytes_up: int) -> None:
        """What a worker said of itself: vertices and seconds of training, the bytes of that, its kind of machine."""
        self._batch.report(sync, at_s, bytes_up)

    def worker_sent(self, worker: str, bytes_down: int, at_s: float) -> None:
        """Count bytes of chunks and answers that were put where a worker fetches them."""
        self._batch.sent(worker, bytes_down, at_s)

    def worker_paced(self, worker: str, push_every: int, reason: str) -> None:
        """How often a worker was told to push, and why."""
        self._batch.paced(worker, push_every, reason)

    def worker_counts(self) -> tuple[int, int]:
        """Return how many workers the run has had, and how many of them ever spoke."""
        workers, spoke = self._db.execute("SELECT count(*), count(first_sync_s) FROM workers").fetchone()
        return workers, spoke

    def workers(self) -> list[dict[str, Any]]:
        cursor = self._db.execute("SELECT * FROM workers ORDER BY submitted_s, worker")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def add_blame(self, worker: str, lease: int, reason: str, at_s: float) -> None:
        """Write down that a push was shortened or refused for what was in it."""
        self._db.execute("INSERT INTO blames VALUES (?, ?, ?, ?)", (at_s, worker, lease, reason))

    def add_altered(self, worker: str, how: Altered, vertices: int, reason: str, at_s: float) -> int:
        """Count a push that was not taken as it came; return how many of its worker were not, in this way.

        What a worker says that it trained can be as much as a message holds, so the sum stops there.
        """
        counted = self._db.execute(
            "INSERT INTO altered VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET pushes = pushes + 1, "
            f"vertices = min(vertices + excluded.vertices, {LARGEST}), at_s = excluded.at_s, reason = excluded.reason "
            "RETURNING pushes",
            (worker, how.value, vertices, at_s, reason),
        )
        return int(counted.fetchone()[0])

    def quarantine(self, worker: str, reason: str, at_s: float) -> None:
        """Write down that a worker is trusted no more."""
        self._db.execute("INSERT OR IGNORE INTO quarantined VALUES (?, ?, ?)", (worker, at_s, reason))

    def quarantined(self) -> list[str]:
        """The workers that are trusted no more."""
        return [worker for (worker,) in self._db.execute("SELECT worker FROM quarantined")]

    def add_failure(self, lease: LeaseState, machine: str, failure: Failure, reason: str, at_s: float) -> None:
        """Write down that f failed on what is not credited of a lease, and what came of it."""
        where = at_s, lease.worker, machine, lease.id, lease.epoch, lease.upto, lease.stop
        self._db.execute(
            "INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*where, failure.message, failure.traceback, failure.first, failure.last, reason),
        )

    def worker_failed(self, worker: str, failures: int, until_s: float | None, because: str | None) -> None:
        """Write down how often in a row a worker failed, and until when it gets no lease."""
        self._db.execute(
            "UPDATE workers SET failed = ?, avoided_until_s = ?, avoided_because = ? WHERE worker = ?",
            (failures, until_s, because, worker),
        )

    def machine_failed(self, machine: MachineRecord) -> None:
        """Write down what counts against a machine."""
        self._db.execute(
            "INSERT OR REPLACE INTO machines VALUES (:name, :failures, :distrusted, :avoided_until_s, :reason)",
            dataclasses.asdict(machine),
        )

    def machine_forgiven(self, name: str) -> None:
        """Nothing counts against a machine any more."""
        self._db.execute("DELETE FROM machines WHERE name = ?", (name,))

    def machines(self) -> list[dict[str, Any]]:
        """What counts against machines, by the fields of their records."""
        names = "name", "failures", "distrusted", "avoided_until_s", "reason"
        rows = self._db.execute(f"SELECT {', '.join(names)} FROM machines ORDER BY name")
        return [dict(zip(names, row, strict=True)) for row in rows]
