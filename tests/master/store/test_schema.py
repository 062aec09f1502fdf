"""A cell with a value that no master writes is damage, and so is a table that differs from the schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from master.store.schema import SCHEMA, check_tables

HONEST: dict[str, Any] = {"INTEGER": 1, "REAL": 1.0, "TEXT": "x"}
VALUES = {"text": "x", "null": None, "negative": -1, "huge": 1e300, "beyond": 2**53, "bytes": b"\x00\xff"}


def columns() -> Iterator[tuple[str, str, str, bool]]:
    """Yield (table, column, its type, whether it may be NULL); not those that are the number of the row, which can be
    nothing else."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = db.execute(f"PRAGMA table_info({table})").fetchall()
            keys = sum(key > 0 for *_, key in rows)
            for _, name, declared, not_null, _, key in rows:
                if not (key and keys == 1 and declared == "INTEGER"):
                    yield table, name, declared, not (not_null or key)


def one_row(path: Path, table: str, row: dict[str, Any]) -> sqlite3.Connection:
    """Return a ledger with one row, which SQLite has accepted."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA.replace(" NOT NULL", ""))
        db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()])
        db.execute("PRAGMA writable_schema = ON")
        with closing(sqlite3.connect(":memory:")) as made:
            made.executescript(SCHEMA)
            for name, sql in made.execute("SELECT name, sql FROM sqlite_master"):
                db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))
        db.commit()
    return sqlite3.connect(path)


@pytest.mark.parametrize("name", VALUES)
def test_every_cell_holds_what_a_master_writes(tmp_path: Path, name: str) -> None:
    value = VALUES[name]
    every = [*columns()]
    for table, column, declared, optional in every:
        honest = {other: HONEST[sort] for of, other, sort, _ in every if of == table}
        # In a column of text, SQLite converts a number to text.
        possible = optional if value is None else declared == "TEXT" and not isinstance(value, bytes)
        signed = {("failures", "first"), ("failures", "last"), ("logged", "total")}
        possible = possible or (value == -1 and (table, column) in signed)
        possible = possible or (value == 2**53 and (table, column) == ("logged", "total"))
        with closing(one_row(tmp_path / f"{table}.{column}.db", table, {**honest, column: value})) as db:
            refused = False
            try:
                check_tables(db)
            except sqlite3.DatabaseError as error:
                refused = f"its table {table} holds what no master of gridml writes" in str(error)
            assert refused is not possible, (table, column)


def test_a_table_that_is_missing_or_another_one_is_damage() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        check_tables(db)
        db.execute("ALTER TABLE versions RENAME COLUMN sha256 TO sha257")
        with pytest.raises(sqlite3.DatabaseError, match="its table versions is another one"):
            check_tables(db)
        db.execute("DROP TABLE versions")
        with pytest.raises(sqlite3.DatabaseError, match="no such table: versions"):
            check_tables(db)
