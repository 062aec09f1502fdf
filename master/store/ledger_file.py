"""The file of a ledger: integrity checks, transactions of a single writer, the backup copy, and facts by name."""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridml.errors import DamagedError, GridmlError, LedgerError
from gridml.protocol.bundle import sync_folder
from gridml.protocol.foreign import described
from master.store.diagnosis import explain
from master.store.rundir import NO_FACTS, EventFacts, RunDirectory, facts_text, superseded
from master.store.schema import SCHEMA, SCHEMA_VERSION, check_tables, encode_checksummed, read_fact, verify_checksums

BUSY_TIMEOUT_S = 60.0  # that SQLite waits for another process's lock


class LedgerFile(ABC):
    """The part of a `Ledger` that does not depend on its tables.

    Raises LedgerError for a damaged file, StorageError for errors of its disk; the file then holds the last commit.
    Without `durable` that survives the death of the master but not of its machine: for simulations and tests.
    """

    def __init__(self, path: Path, *, shared_disk: bool, create: bool = False, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._after_commit: list[Callable[[], None]] = []  # called once, in order, after the open transaction commits
        if not create and not path.is_file():
            if RunDirectory(path.parent).ledger_copy.is_file():
                raise explain(DamagedError(f"{path} is gone", path), path.parent)
            raise LedgerError(f"{path.parent} is not a run: it has no {path.name}. Start one with gridml run PROGRAM.")
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        except sqlite3.Error as error:
            raise explain(error, path.parent) from error
        try:
            # WAL keeps its index in shared memory, which network file systems do not share between machines.
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if shared_disk else 'WAL'}")
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            if create:
                self._db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            self._check()
            # The term of new leases. It is also the fencing token of the master: only the newest term may write.
            self.term: int = self.get("term", 1)
            self._read_mirror()
        except (ValueError, TypeError, LookupError) as error:  # bad JSON in a cell, or a schema that is not text
            self._db.close()
            problem = f"{path} cannot be read: {described(error)}"
            raise explain(DamagedError(problem, path), path.parent) from error
        except (sqlite3.Error, DamagedError) as error:
            self._db.close()
            raise explain(error, path.parent) from error
        except LedgerError:
            self._db.close()
            raise

    @abstractmethod
    def _read_mirror(self) -> None:
        """Read the state mirrored in memory from the file."""

    @abstractmethod
    def _write_batch(self) -> None:
        """Write the batched changes of the open transaction."""

    @abstractmethod
    def _drop_batch(self) -> None:
        """Discard the batched changes of the open transaction."""

    def _check(self) -> None:
        schema = self._db.execute("PRAGMA user_version").fetchone()[0]
        if not schema and not self._one("SELECT count(*) FROM sqlite_master"):
            raise DamagedError(f"{self.path} cannot be read: it is empty", self.path)
        if schema != SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has schema {schema}, this gridml writes {SCHEMA_VERSION}. Resume it with its own gridml."
            )
        verdict = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if verdict != "ok":
            raise DamagedError(f"{self.path} cannot be read: {verdict}", self.path)
        check_tables(self._db)
        verify_checksums(self._db)

    def _one(self, query: str, *values: Any) -> Any:
        """Return the first cell of the first row, None without a row."""
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def explain(self, error: sqlite3.Error) -> GridmlError:
        """Return the error to show: what happened to the file, and what to do."""
        return explain(error, self.path.parent)

    def check_master(self) -> None:
        """Raise SupersededError if another master has taken the run over."""
        if self.get("term", 1) != self.term:
            raise superseded(self.path.parent)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body atomically; durable on return. Raises SupersededError if another master has taken over."""
        try:
            self._db.execute("BEGIN IMMEDIATE")  # takes the write lock first, so that the term cannot change after it
            self.check_master()
            yield
            self._write_batch()
            self._db.execute("COMMIT")
        except BaseException as error:
            self._undo()
            if isinstance(error, sqlite3.Error):
                raise self.explain(error) from error
            raise
        callbacks, self._after_commit = self._after_commit, []
        for callback in callbacks:
            callback()

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the open transaction commits, and never if it fails."""
        self._after_commit.append(callback)

    def _undo(self) -> None:
        """Return to the last commit, in the file and in the mirror."""
        # The next transaction, which records why the run ends, must write nothing of the failed one.
        self._drop_batch()
        self._after_commit.clear()
        with contextlib.suppress(sqlite3.Error):  # the disk may be the cause; then no later write succeeds either
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._read_mirror()

    def close(self) -> None:
        self._db.close()

    def _copy(self) -> None:
        """Copy the file atomically to ledger.backup.db."""
        temporary = self.path.with_name("ledger.backup.tmp")
        temporary.unlink(missing_ok=True)
        try:
            copy = sqlite3.connect(temporary)
            copy.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
            with copy:
                self._db.backup(copy)
            # Marks it as a copy: work leased by the ledger after this moment may have continued without it.
            with copy:
                copy.execute("INSERT OR REPLACE INTO run VALUES ('undone', ?, ?)", encode_checksummed(True))
            copy.close()
        except sqlite3.Error as error:
            raise self.explain(error) from error
        temporary.replace(self.path.with_name("ledger.backup.db"))
        if self._durable:
            sync_folder(self.path.parent)

    def set(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (key, *encode_checksummed(value)))

    def get(self, key: str, default: Any = None) -> Any:
        return read_fact(self._db, key, default)

    def last_activity_s(self) -> float:
        """Return the time of the last write by any master, 0 without one."""
        return last_activity_s(self._db)

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        """Add the row of an event. Masters call `Events.record` instead."""
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (at_s, topic, text, facts_text(facts)))


def last_activity_s(db: sqlite3.Connection) -> float:
    """Return the latest time in any row, 0 without one. A master that was killed lived at least until then."""
    moments = {
        "versions": ["at_s"],
        "events": ["at_s"],
        "epochs": ["opened_s"],
        "leases": ["opened_s"],
        "workers": ["submitted_s", "started_s", "first_sync_s", "ended_s"],
    }
    parts = [f"SELECT max({column}) FROM {table}" for table, columns in moments.items() for column in columns]
    moments_s = db.execute(" UNION ALL ".join(parts)).fetchall()
    return max((float(at_s) for (at_s,) in moments_s if at_s is not None), default=0.0)
