"""Rows of a ledger: the rows of workers and machines, and the batch of rows that a transaction writes at its end.

One turn of the master's loop can credit hundreds of pushes. `WriteBatch` collects their rows and writes them with one
`executemany` per statement, which costs a few microseconds per row.
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
from master.state.failures import Alteration, Failed, MachineRecord
from master.state.jobs import JobEvent, State
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.store.rundir import ORPHANED
from master.store.schema import encode_checksummed


def by_name(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Return rows as mappings from column name to value."""
    names = [column for column, *_ in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def failed_text(failed: Sequence[Failed]) -> str:
    """Encode failures of f for a column. The usual case, no failures, is ""."""
    return json.dumps(failed) if failed else ""


def failed_from(text: str) -> tuple[Failed, ...]:
    """Decode the failures in a column."""
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
# A worker reports totals. max() prevents a repeated or late message from lowering the stored totals.
_UPDATE_WORKER = """
UPDATE workers SET first_sync_s = coalesce(first_sync_s, :at_s), trained = max(trained, :trained),
  train_s = max(train_s, :train_s), credited = credited + :credited, bytes_up = bytes_up + :up,
  bytes_down = bytes_down + :down, kind = coalesce(nullif(:kind, ''), kind),
  push_every = coalesce(:push_every, push_every), push_reason = coalesce(:push_reason, push_reason)
WHERE worker = :worker
"""

_TROUBLES = """
SELECT count(*), coalesce(message, ''), max(at_s) FROM failures WHERE at_s >= :at_s
UNION ALL SELECT coalesce(sum(pushes), 0), coalesce(reason, ''), max(at_s) FROM altered
  WHERE how = 'refused' AND at_s >= :at_s
UNION ALL SELECT count(*), coalesce(detail, ''), max(submitted_s) FROM workers WHERE state = 'held' AND ended_s IS NULL
"""


@dataclass
class _WorkerChange:
    """Messages and bytes exchanged with one worker in the open transaction."""

    worker: str
    at_s: float | None = None  # time of the first message received in the transaction
    trained: int = 0  # vertices trained since the worker started, as the worker reports
    train_s: float = 0.0  # seconds of training since the worker started, as the worker reports
    credited: int = 0  # vertices credited in this transaction
    up: int = 0  # bytes received from the worker
    down: int = 0  # bytes sent to the worker
    kind: str = ""  # kind of its machine
    push_every: int | None = None  # the new push interval, in vertices; None: unchanged
    push_reason: str | None = None  # reason for `push_every`


@dataclass
class WriteBatch:
    """Rows that the open transaction has changed and not yet written, each row at most once."""

    #: of each new lease: (number, term, epoch, start, worker, reason, time)
    _opened: list[tuple[int, int, int, int, str, str, float]] = field(default_factory=list)
    #: leases by number; each is written with its state at the end of the transaction
    _changed: dict[int, LeaseState] = field(default_factory=dict)
    #: by lease number: (time, reason, times reassigned)
    _closed: dict[int, tuple[float, str, int]] = field(default_factory=dict)
    #: (epoch, start, stop, lease, version, worker, staleness, time)
    _credits: list[tuple[int, int, int, int, int | None, str, float, float]] = field(default_factory=list)
    #: by version, epoch and name: (sum of f's logged values, vertices that the sum covers)
    _logged: dict[tuple[int | None, int, str], tuple[float, int]] = field(default_factory=dict)
    #: by epoch: vertices credited
    _epochs: dict[int, int] = field(default_factory=dict)
    #: by the time of the master's turn: [bytes received, bytes sent], summed over all workers
    _traffic: dict[float, list[int]] = field(default_factory=dict)
    _workers: dict[str, _WorkerChange] = field(default_factory=dict)

    def open(self, lease: LeaseState, at_s: float, reason: str) -> None:
        self._opened.append((lease.id, lease.term, lease.epoch, lease.start, lease.worker, reason, at_s))
        self._changed[lease.id] = lease

    def change(self, lease: LeaseState) -> None:
        """Write the lease as open, even if it was closed earlier in this transaction."""
        self._changed[lease.id] = lease
        self._closed.pop(lease.id, None)

    def credit(self, lease: LeaseState, start: int, staleness: float, at_s: float) -> None:
        """Credit [start, lease.upto)."""
        self.change(lease)
        self._credits.append((lease.epoch, start, lease.upto, lease.id, lease.version, lease.worker, staleness, at_s))
        self._epochs[lease.epoch] = self._epochs.get(lease.epoch, 0) + lease.upto - start
        self._of(lease.worker).credited += lease.upto - start

    def log(self, lease: LeaseState, logged: Sequence[Logged]) -> None:
        """Add the values that f logged for the vertices just credited."""
        for name, total, vertices in logged:
            key = lease.version, lease.epoch, name
            before, counted = self._logged.get(key, (0.0, 0))
            self._logged[key] = before + total, counted + vertices

    def close(self, lease: LeaseState, at_s: float, because: str, *, times_reassigned: int = 0) -> None:
        self._changed[lease.id] = lease
        self._closed[lease.id] = at_s, because, times_reassigned

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
        """Write the batch. Delete the free spans whose (epoch, start) is in `gone`, then insert the free `spans`."""
        logged = [(*key, *sums) for key, sums in self._logged.items()]
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
                [(*row, encode_checksummed(row).crc32) for row in logged],
            ),
            (_UPDATE_WORKER, [vars(change) for change in self._workers.values()]),
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
        """Add bytes to the sums over all workers, which become one row per turn of the master."""
        if up or down:
            sums = self._traffic.setdefault(at_s, [0, 0])
            sums[0] += up
            sums[1] += down

    def _lease_row(self, lease: LeaseState) -> tuple[object, ...]:
        closed = self._closed.get(lease.id, (None, None, 0))
        return (*_STATE(lease), failed_text(lease.failed), *closed, lease.id)


class WorkerRows:
    """The rows of a `Ledger` that are not mirrored in memory. Call a method that writes only inside a transaction."""

    _db: sqlite3.Connection
    _batch: WriteBatch

    def worker_submitted(self, worker: str, at_s: float) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO workers (worker, state, submitted_s) VALUES (?, ?, ?)",
            (worker, State.QUEUED.value, at_s),
        )

    def worker_event(self, event: JobEvent, at_s: float) -> None:
        """Record an event of the back end."""
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
        """Record that the workers of an earlier master are lost, except those in `but`, which are still alive."""
        orphans = [w for (w,) in self._db.execute("SELECT worker FROM workers WHERE ended_s IS NULL") if w not in but]
        self._db.executemany(
            "UPDATE workers SET state = ?, detail = ?, ended_s = ? WHERE worker = ?",
            [(State.LOST.value, ORPHANED, at_s, worker) for worker in orphans],
        )

    def worker_reported(self, sync: Sync, at_s: float, bytes_up: int) -> None:
        """Record a worker's report: vertices and seconds of training, its kind of machine, the bytes received."""
        self._batch.report(sync, at_s, bytes_up)

    def worker_sent(self, worker: str, bytes_down: int, at_s: float) -> None:
        """Count bytes of chunks and replies published for a worker."""
        self._batch.sent(worker, bytes_down, at_s)

    def worker_push_interval(self, worker: str, push_every: int, reason: str) -> None:
        """Record the push interval assigned to a worker, and the reason."""
        self._batch.paced(worker, push_every, reason)

    def worker_counts(self) -> tuple[int, int]:
        """Return (number of workers so far, number of workers that have sent a message)."""
        workers, spoke = self._db.execute("SELECT count(*), count(first_sync_s) FROM workers").fetchone()
        return workers, spoke

    def workers(self) -> list[dict[str, Any]]:
        return by_name(self._db.execute("SELECT * FROM workers ORDER BY submitted_s, worker"))

    def add_flag(self, worker: str, lease: int, reason: str, at_s: float) -> None:
        """Record that a push was shortened or rejected for its content."""
        self._db.execute("INSERT INTO blames VALUES (?, ?, ?, ?)", (at_s, worker, lease, reason))

    def add_altered(self, worker: str, how: Alteration, vertices: int, reason: str, at_s: float) -> int:
        """Count a push that was altered or rejected. Returns the worker's number of pushes altered as in `how`."""
        # A worker can report any number that fits into a message, so the sum saturates at the column's maximum.
        counted = self._db.execute(
            "INSERT INTO altered VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET pushes = pushes + 1, "
            f"vertices = min(vertices + excluded.vertices, {MAX_INTEGER}), at_s = excluded.at_s, "
            "reason = excluded.reason RETURNING pushes",
            (worker, how.value, vertices, at_s, reason),
        )
        return int(counted.fetchone()[0])

    def quarantine(self, worker: str, reason: str, at_s: float) -> None:
        """Record that a worker is quarantined."""
        self._db.execute("INSERT OR IGNORE INTO quarantined VALUES (?, ?, ?)", (worker, at_s, reason))

    def quarantined(self) -> list[str]:
        """Return the quarantined workers."""
        return [worker for (worker,) in self._db.execute("SELECT worker FROM quarantined")]

    def add_failure(self, lease: LeaseState, machine: str, failure: Failure, reason: str, at_s: float) -> None:
        """Record that f failed on the uncredited rest of a lease. `reason` is the consequence, as a text."""
        where = at_s, lease.worker, machine, lease.id, lease.epoch, lease.upto, lease.stop
        self._db.execute(
            "INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*where, failure.message, failure.traceback, failure.first, failure.last, reason),
        )

    def troubles_since(self, at_s: float) -> list[tuple[int, str]]:
        """Return (number, newest text) for each of three kinds of trouble: failures of f since `at_s`; all refused
        pushes of those workers that had a push refused since `at_s`; jobs that are held now."""
        return [(count, text) for count, text, _ in self._db.execute(_TROUBLES, {"at_s": at_s})]

    def worker_failed(self, worker: str, failures: int, until_s: float | None, because: str | None) -> None:
        """Record the number of a worker's consecutive failures, and the time until which it gets no lease."""
        self._db.execute(
            "UPDATE workers SET failed = ?, avoided_until_s = ?, avoided_because = ? WHERE worker = ?",
            (failures, until_s, because, worker),
        )

    def machine_failed(self, machine: MachineRecord) -> None:
        """Record the failures of a machine."""
        self._db.execute(
            "INSERT OR REPLACE INTO machines VALUES (:name, :failures, :distrusted, :avoided_until_s, :reason)",
            dataclasses.asdict(machine),
        )

    def clear_machine(self, name: str) -> None:
        """Clear the failures of a machine."""
        self._db.execute("DELETE FROM machines WHERE name = ?", (name,))

    def machines(self) -> list[dict[str, Any]]:
        """Return the failures of machines, by the fields of `MachineRecord`."""
        return by_name(self._db.execute("SELECT * FROM machines ORDER BY name"))
