"""The rows of a ledger about workers and machines, and the rows that a transaction writes at its end.

The rows say what became of a worker or machine, what it said, and what counts against it.

A `WriteBatch` holds what a transaction has changed and not written yet: each row once, statement by statement. A
turn of the master may credit hundreds of pushes. Their rows are collected here and written together, which costs a
few microseconds each; the transaction makes them one.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gridml.protocol.foreign import MAX_INTEGER
from gridml.protocol.messages import Failure, Logged, Sync
from master.state.failures import Altered, Failed, MachineRecord
from master.state.jobs import JobEvent, State
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.store.rundir import ORPHANED
from master.store.schema import encode_checksummed


def by_name(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Return rows as their columns by name."""
    names = [column for column, *_ in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def failed_text(failed: Sequence[Failed]) -> str:
    """Return failures as a column holds them: "" for none, which is nearly always."""
    return json.dumps(failed) if failed else ""


def failed_from(text: str) -> tuple[Failed, ...]:
    """Return the failures that a column holds."""
    return tuple(Failed(*failure) for failure in json.loads(text)) if text else ()


_OPEN = """
INSERT INTO leases (id, term, epoch, start, worker, reason, opened_s, stop, upto, sequence, trained)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0)
"""
_STATE = attrgetter("stop", "upto", "worker", "sequence", "trained", "version", "reserved_until_s")
_CHANGE = """
UPDATE leases SET stop = ?, upto = ?, worker = ?, sequence = ?, trained = ?, version = ?, reserved_until_s = ?,
  failed = ?, closed_s = ?, closed_because = ?, overtaken = ? WHERE id = ?
"""
_HEAR = """
UPDATE workers SET first_sync_s = coalesce(first_sync_s, :at_s), trained = max(trained, :trained),
  train_s = max(train_s, :train_s), credited = credited + :credited, bytes_up = bytes_up + :up,
  bytes_down = bytes_down + :down, kind = coalesce(nullif(:kind, ''), kind),
  push_every = coalesce(:push_every, push_every), push_reason = coalesce(:push_reason, push_reason)
WHERE worker = :worker
"""


@dataclass
class _WorkerChange:
    """What was heard of one worker and sent to it."""

    worker: str
    at_s: float | None = None
    trained: int = 0
    train_s: float = 0.0
    credited: int = 0
    up: int = 0
    down: int = 0
    kind: str = ""
    push_every: int | None = None
    push_reason: str | None = None


@dataclass
class WriteBatch:
    """Rows of leases, credits, what f logged, workers, and the bytes that passed. Leases are written as they stand when
    the transaction ends."""

    _opened: list[tuple[int, int, int, int, str, str, float]] = field(default_factory=list)
    _changed: dict[int, LeaseState] = field(default_factory=dict)
    _closed: dict[int, tuple[float, str, int]] = field(default_factory=dict)
    _credits: list[tuple[int, int, int, int, int | None, str, float, float]] = field(default_factory=list)
    _logged: dict[tuple[int | None, int, str], tuple[float, int]] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)
    _traffic: dict[float, list[int]] = field(default_factory=dict)  # up and down by the time of a turn
    _workers: dict[str, _WorkerChange] = field(default_factory=dict)

    def open(self, lease: LeaseState, at_s: float, reason: str) -> None:
        self._opened.append((lease.id, lease.term, lease.epoch, lease.start, lease.worker, reason, at_s))
        self._changed[lease.id] = lease

    def change(self, lease: LeaseState) -> None:
        """Open (again), as it is now."""
        self._changed[lease.id] = lease
        self._closed.pop(lease.id, None)

    def credit(self, lease: LeaseState, start: int, staleness: float, at_s: float) -> None:
        """Credited from `start` to where the lease now stands."""
        self.change(lease)
        self._credits.append((lease.epoch, start, lease.upto, lease.id, lease.version, lease.worker, staleness, at_s))
        self._epochs[lease.epoch] = self._epochs.get(lease.epoch, 0) + lease.upto - start
        self._of(lease.worker).credited += lease.upto - start

    def log(self, lease: LeaseState, logged: Sequence[Logged]) -> None:
        """Sum what f logged of what was just credited."""
        for name, total, vertices in logged:
            key = lease.version, lease.epoch, name
            before, counted = self._logged.get(key, (0.0, 0))
            self._logged[key] = before + total, counted + vertices

    def close(self, lease: LeaseState, at_s: float, because: str, *, overtaken: int = 0) -> None:
        self._changed[lease.id] = lease
        self._closed[lease.id] = at_s, because, overtaken

    def report(self, sync: Sync, at_s: float, up: int) -> None:
        change = self._of(sync.worker)
        change.at_s = at_s if change.at_s is None else change.at_s
        change.trained, change.train_s = max(change.trained, sync.trained), max(change.train_s, sync.train_s)
        change.up += up
        self._pass(at_s, up, 0)
        change.kind = sync.kind

    def sent(self, worker: str, down: int, at_s: float) -> None:
        self._of(worker).down += down
        self._pass(at_s, 0, down)

    def paced(self, worker: str, push_every: int, reason: str) -> None:
        change = self._of(worker)
        change.push_every, change.push_reason = push_every, reason

    def write(self, db: sqlite3.Connection, gone: Sequence[tuple[int, int]], spans: Sequence[Span]) -> None:
        """Write all of it, and the free spans that changed (`gone` names those to delete)."""
        for query, rows in (
            ("DELETE FROM spans WHERE epoch = ? AND start = ?", gone),
            (
                "INSERT INTO spans VALUES (?, ?, ?, ?)",
                [(s.epoch, s.start, s.stop, failed_text(s.failed)) for s in spans],
            ),
            (_OPEN, self._opened),
            (_CHANGE, [self._lease_row(lease) for lease in self._changed.values()]),
            ("INSERT INTO credits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._credits),
            (
                "UPDATE epochs SET credited = credited + ? WHERE epoch = ?",
                [(count, epoch) for epoch, count in self._epochs.items()],
            ),
            (
                "INSERT INTO logged VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*row, encode_checksummed(row).crc32)
                    for row in ((*key, *sums) for key, sums in self._logged.items())
                ],
            ),
            (_HEAR, [vars(change) for change in self._workers.values()]),
            ("INSERT INTO traffic VALUES (?, ?, ?)", [(at_s, *sums) for at_s, sums in self._traffic.items()]),
        ):
            if rows:
                db.executemany(query, rows)

    def _of(self, worker: str) -> _WorkerChange:
        change = self._workers.get(worker)
        if change is None:
            change = self._workers[worker] = _WorkerChange(worker)
        return change

    def _pass(self, at_s: float, up: int, down: int) -> None:
        """Count bytes of all workers together: a turn of the master has one time, and so one row."""
        if up or down:
            sums = self._traffic.setdefault(at_s, [0, 0])
            sums[0] += up
            sums[1] += down

    def _lease_row(self, lease: LeaseState) -> tuple[object, ...]:
        closed = self._closed.get(lease.id, (None, None, 0))
        return (*_STATE(lease), failed_text(lease.failed), *closed, lease.id)


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

    def worker_push_interval(self, worker: str, push_every: int, reason: str) -> None:
        """How often a worker was told to push, and why."""
        self._batch.paced(worker, push_every, reason)

    def worker_counts(self) -> tuple[int, int]:
        """Return how many workers the run has had, and how many of them ever spoke."""
        workers, spoke = self._db.execute("SELECT count(*), count(first_sync_s) FROM workers").fetchone()
        return workers, spoke

    def workers(self) -> list[dict[str, Any]]:
        return by_name(self._db.execute("SELECT * FROM workers ORDER BY submitted_s, worker"))

    def add_flag(self, worker: str, lease: int, reason: str, at_s: float) -> None:
        """Write down that a push was shortened or refused for what was in it."""
        self._db.execute("INSERT INTO blames VALUES (?, ?, ?, ?)", (at_s, worker, lease, reason))

    def add_altered(self, worker: str, how: Altered, vertices: int, reason: str, at_s: float) -> int:
        """Count a push that was not taken as it came; return how many of its worker were not, in this way.

        What a worker says that it trained can be as much as a message holds, so the sum stops there.
        """
        counted = self._db.execute(
            "INSERT INTO altered VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET pushes = pushes + 1, "
            f"vertices = min(vertices + excluded.vertices, {MAX_INTEGER}), at_s = excluded.at_s, "
            "reason = excluded.reason RETURNING pushes",
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

    def clear_machine(self, name: str) -> None:
        """Nothing counts against a machine any more."""
        self._db.execute("DELETE FROM machines WHERE name = ?", (name,))

    def machines(self) -> list[dict[str, Any]]:
        """What counts against machines, by the fields of their records."""
        return by_name(self._db.execute("SELECT * FROM machines ORDER BY name"))
