"""The file of a ledger: opened and checked, changed all or nothing by one master, copied, and facts by name."""

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

BUSY_TIMEOUT_S = 60.0  # how long another process may hold the file before a master gives up


class LedgerFile(ABC):
    """What of a `Ledger` is the same whatever its rows say.

    Raises LedgerError for a damaged file, StorageError for what its disk refuses; the file then stands as after its
    last commit. Without `durable` that holds for the death of the master, not for that of its machine: for simulations
    and tests.
    """

    def __init__(self, path: Path, *, shared_disk: bool, create: bool = False, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._then: list[Callable[[], None]] = []  # what to do once the open transaction is committed
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
            self.term: int = self.get("term", 1)  # of the leases to come, and the mark of the master that may write
            self._read_mirror()
        except (ValueError, TypeError, LookupError) as error:  # of JSON in a cell, or of a schema that is no text
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
        """Read what is kept in memory, too, as the file has it."""

    @abstractmethod
    def _write_batch(self) -> None:
        """Write what the open transaction has changed in memory alone."""

    @abstractmethod
    def _drop_batch(self) -> None:
        """Forget what the open transaction has changed in memory alone."""

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
        """The first cell of the first row, None where there is no row."""
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def explain(self, error: sqlite3.Error) -> GridmlError:
        """The error meant for a person: what happened to the file, and what to do."""
        return explain(error, self.path.parent)

    def check_master(self) -> None:
        """Raise SupersededError if another master has taken the run over."""
        if self.get("term", 1) != self.term:
            raise superseded(self.path.parent)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, durable when it returns. Raises SupersededError if another master has taken over."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self.check_master()
            yield
            self._write_batch()
            self._db.execute("COMMIT")
        except BaseException as error:
            self._undo()
            if isinstance(error, sqlite3.Error):
                raise self.explain(error) from error
            raise
        then, self._then = self._then, []
        for each in then:
            each()

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def after_commit(self, then: Callable[[], None]) -> None:
        """Have `then` called once the open transaction is committed, and never if it fails."""
        self._then.append(then)

    def _undo(self) -> None:
        """Back to the last commit, the mirror too: another transaction, which says why the run ends, must write nothing
        of the one that failed."""
        self._drop_batch()
        self._then.clear()
        with contextlib.suppress(sqlite3.Error):  # the disk may be the cause; then nothing of it can be written either
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._read_mirror()

    def close(self) -> None:
        self._db.close()

    def _copy(self) -> None:
        """Copy the file to ledger.backup.db, whole or not at all. The copy says of itself that it is one."""
        temporary = self.path.with_name("ledger.backup.tmp")
        temporary.unlink(missing_ok=True)
        try:
            copy = sqlite3.connect(temporary)
            copy.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
            with copy:
                self._db.backup(copy)
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
        """When a master last wrote something down, 0 if none ever did."""
        return last_activity_s(self._db)

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        """Add the row of an event; a master does it by `Events.record`."""
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (at_s, topic, text, facts_text(facts)))


def last_activity_s(db: sqlite3.Connection) -> float:
    """The last moment that any row names, 0 where there is none: a master that was killed lived at least until then."""
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
