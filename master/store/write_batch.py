"""What a transaction of the ledger has changed and not written yet: each row once, statement by statement.

A turn of the master may credit hundreds of pushes. Their rows are collected here and written together, which costs a
few microseconds each; the transaction makes them one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from master.decisions.leasing import LeaseRow, Span


@dataclass
class _Said:
    """What was heard of one worker and sent to it."""

    at_s: float | None = None
    trained: int = 0
    train_s: float = 0.0
    up: int = 0
    down: int = 0
    kind: str = ""


@dataclass
class WriteBatch:
    """Rows of leases, credits and workers."""

    _opened: list[tuple[int, int, int, int, str, int, str, float]] = field(default_factory=list)
    _changed: dict[int, LeaseRow] = field(default_factory=dict)
    _closed: dict[int, tuple[float, str]] = field(default_factory=dict)
    _credits: list[tuple[int, int, int, int, int | None, str, float, float]] = field(default_factory=list)
    _epochs: dict[int, int] = field(default_factory=dict)
    _said: dict[str, _Said] = field(default_factory=dict)

    def opened(self, row: LeaseRow, at_s: float, reason: str) -> None:
        self._opened.append((row.id, row.term, row.epoch, row.start, row.worker, row.tries, reason, at_s))
        self._changed[row.id] = row

    def changed(self, row: LeaseRow) -> None:
        """Open (again), with these values."""
        self._changed[row.id] = row
        self._closed.pop(row.id, None)

    def credited(self, before: LeaseRow, after: LeaseRow, staleness: float, at_s: float) -> None:
        self.changed(after)
        self._credits.append(
            (after.epoch, before.upto, after.upto, after.id, after.version, after.worker, staleness, at_s)
        )
        self._epochs[after.epoch] = self._epochs.get(after.epoch, 0) + after.upto - before.upto

    def closed(self, row: LeaseRow, at_s: float, because: str) -> None:
        self._changed[row.id] = row
        self._closed[row.id] = at_s, because

    def said(self, worker: str, at_s: float, trained: int, train_s: float, up: int, kind: str) -> None:
        known = self._said.setdefault(worker, _Said())
        known.at_s = at_s if known.at_s is None else known.at_s
        known.trained, known.train_s = max(known.trained, trained), max(known.train_s, train_s)
        known.up += up
        known.kind = kind

    def sent(self, worker: str, down: int) -> None:
        self._said.setdefault(worker, _Said()).down += down

    def write(self, db: sqlite3.Connection, gone: Sequence[tuple[int, int]], spans: Sequence[Span]) -> None:
        """Write all of it, and the free spans that changed (`gone` names those to delete); then nothing is pending."""
        if gone:
            db.executemany("DELETE FROM spans WHERE epoch = ? AND start = ?", gone)
        if spans:
            db.executemany(
                "INSERT INTO spans VALUES (?, ?, ?, ?)", [(s.epoch, s.start, s.stop, s.tries) for s in spans]
            )
        if self._opened:
            db.executemany(
                "INSERT INTO leases (id, term, epoch, start, worker, tries, reason, opened_s, stop, upto, sequence, "
                "trained) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0)",
                self._opened,
            )
        if self._changed:
            db.executemany(
                "UPDATE leases SET stop = ?, upto = ?, worker = ?, sequence = ?, trained = ?, version = ?, "
                "closed_s = ?, closed_because = ? WHERE id = ?",
                [
                    (
                        r.stop,
                        r.upto,
                        r.worker,
                        r.sequence,
                        r.trained,
                        r.version,
                        *self._closed.get(id, (None, None)),
                        id,
                    )
                    for id, r in self._changed.items()
                ],
            )
        if self._credits:
            db.executemany("INSERT INTO credits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._credits)
            db.executemany(
                "UPDATE epochs SET credited = credited + ? WHERE epoch = ?", [(n, e) for e, n in self._epochs.items()]
            )
        if self._said:
            db.executemany(
                "UPDATE workers SET first_sync_s = coalesce(first_sync_s, ?), trained = max(trained, ?), "
                "train_s = max(train_s, ?), bytes_up = bytes_up + ?, bytes_down = bytes_down + ?, "
                "kind = coalesce(nullif(?, ''), kind) WHERE worker = ?",
                [(s.at_s, s.trained, s.train_s, s.up, s.down, s.kind, worker) for worker, s in self._said.items()],
            )
        self._opened.clear()
        self._changed.clear()
        self._closed.clear()
        self._credits.clear()
        self._epochs.clear()
        self._said.clear()
