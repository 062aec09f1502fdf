"""The tables of a ledger. A run is finished with the gridml that began it: there is no migration."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from typing import Any

from gridml.protocol.bounds import LARGEST
from master.store.sealed import damage

SCHEMA_VERSION = 8
LATEST_S = 1e12  # of times, durations, staleness
SIGNED = {("failures", "first"), ("failures", "last")}  # -1 where f did not fail in a batch
SUMS = {("logged", "total")}  # of any sign
LARGEST_SUM = 1e60  # more than what can be logged of all vertices
SCHEMA = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc32 INTEGER NOT NULL);
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, vertices INTEGER NOT NULL, credited INTEGER NOT NULL DEFAULT 0,
  opened_s REAL NOT NULL, closed_s REAL, version INTEGER, metrics TEXT, metrics_crc32 INTEGER);
CREATE TABLE spans (epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, failed TEXT NOT NULL,
  PRIMARY KEY (epoch, start));
CREATE TABLE leases (id INTEGER PRIMARY KEY, term INTEGER NOT NULL, epoch INTEGER NOT NULL, start INTEGER NOT NULL,
  stop INTEGER NOT NULL, upto INTEGER NOT NULL, worker TEXT NOT NULL, sequence INTEGER NOT NULL, version INTEGER,
  failed TEXT NOT NULL DEFAULT '', trained INTEGER NOT NULL, reason TEXT NOT NULL, opened_s REAL NOT NULL,
  closed_s REAL, closed_because TEXT, reserved_until_s REAL, overtaken INTEGER NOT NULL DEFAULT 0);
CREATE TABLE credits (epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, lease INTEGER NOT NULL,
  version INTEGER NOT NULL, worker TEXT NOT NULL, staleness REAL NOT NULL, at_s REAL NOT NULL);
CREATE TABLE logged (version INTEGER NOT NULL, epoch INTEGER NOT NULL, name TEXT NOT NULL, total REAL NOT NULL,
  vertices INTEGER NOT NULL, crc32 INTEGER NOT NULL);
CREATE TABLE traffic (at_s REAL NOT NULL, bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY, sha256 TEXT, credited INTEGER NOT NULL, pushes INTEGER NOT NULL,
  at_s REAL NOT NULL, kept INTEGER NOT NULL DEFAULT 1);
CREATE TABLE patches (version INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE workers (worker TEXT PRIMARY KEY, state TEXT NOT NULL, machine TEXT, kind TEXT, graceful INTEGER,
  cancelled INTEGER, detail TEXT, pid INTEGER, submitted_s REAL NOT NULL, started_s REAL, first_sync_s REAL,
  ended_s REAL, trained INTEGER NOT NULL DEFAULT 0, train_s REAL NOT NULL DEFAULT 0,
  credited INTEGER NOT NULL DEFAULT 0, push_every INTEGER, push_reason TEXT, bytes_up INTEGER NOT NULL DEFAULT 0,
  bytes_down INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0, avoided_until_s REAL, avoided_because TEXT);
CREATE TABLE machines (name TEXT PRIMARY KEY, failures INTEGER NOT NULL, distrusted INTEGER NOT NULL,
  avoided_until_s REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE blames (at_s REAL NOT NULL, worker TEXT NOT NULL, lease INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE altered (worker TEXT NOT NULL, how TEXT NOT NULL, pushes INTEGER NOT NULL, vertices INTEGER NOT NULL,
  at_s REAL NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (worker, how));
CREATE TABLE quarantined (worker TEXT PRIMARY KEY, at_s REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE failures (at_s REAL NOT NULL, worker TEXT NOT NULL, machine TEXT NOT NULL, lease INTEGER NOT NULL,
  epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, message TEXT NOT NULL,
  traceback TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE events (at_s REAL NOT NULL, topic TEXT NOT NULL, text TEXT NOT NULL,
  facts TEXT NOT NULL DEFAULT '{}');
"""


def check_tables(ledger: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError where a table is not the one that was made, or holds what no master writes: another
    type, NULL, a number below or beyond what is possible. Reads all of it, about 300,000 leases in a second."""
    there = _tables(ledger)
    for name, made in _made().items():
        if name not in there:
            raise damage(f"no such table: {name}")
        if there[name] != made:
            raise damage(f"its table {name} is another one: {there[name]!r:.500}")
    for table, possible in _possible().items():
        wrong = f"SELECT {', '.join(possible)} FROM {table} WHERE NOT ({' AND '.join(possible.values())}) LIMIT 1"
        for row in ledger.execute(wrong):
            cells = dict(zip(possible, row, strict=True))
            raise damage(f"its table {table} holds what no master of gridml writes: {cells!r:.500}")


@cache
def _made() -> dict[str, tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _tables(db)


def _tables(db: sqlite3.Connection) -> dict[str, tuple[Any, ...]]:
    """Return tables and indices by name, and the text that made each."""
    return {row[0]: row for row in db.execute("SELECT name, tbl_name, type, sql FROM sqlite_master")}


@cache
def _possible() -> dict[str, dict[str, str]]:
    """Return what a cell must fulfil, in SQL, by table and column."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        columns = {table: db.execute(f"PRAGMA table_info({table})").fetchall() for table in _tables(db)}
    return {
        table: {name: _condition(table, name, *rest) for _, name, *rest in rows}
        for table, rows in columns.items()
        if rows  # an index has none
    }


def _condition(table: str, column: str, declared: str, not_null: int, default: object, key: int) -> str:
    condition = f"typeof({column}) = '{declared.lower()}'"  # SQLite takes it that what is NOT NULL is not NULL
    if declared != "TEXT":
        least: float = -1 if (table, column) in SIGNED else 0
        most = LARGEST if declared == "INTEGER" else LATEST_S
        if (table, column) in SUMS:
            least, most = -LARGEST_SUM, LARGEST_SUM
        condition += f" AND {column} BETWEEN {least} AND {most}"
    return f"({condition})" if not_null or key else f"({column} ISNULL OR {condition})"
