"""The file of a ledger: integrity checks, transactions of a single writer, the backup copy, and facts of the run.

A fact of the run is a named JSON value in the table `run`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridml.errors import DamagedError, GridmlError, LedgerError
from gridml.protocol.bundle import sync_folder
from gridml.protocol.foreign import described
from master.store.credits import Credited
from master.store.diagnosis import explain, translate_errors
from master.store.rundir import NO_FACTS, EventFacts, RunDirectory, facts_text, superseded
from master.store.schema import SCHEMA, SCHEMA_VERSION, encode_checksummed, read_fact, verify_file

BUSY_TIMEOUT_S = 60.0  # SQLite waits this long for another process to release its lock


class LedgerFile(ABC):
    """The part of a `Ledger` that does not depend on its tables.

    Raises LedgerError for a damaged file, StorageError for errors of its disk. After such an error the file holds the
    last commit. Without `durable`, as in simulations and tests, a commit survives the death of the master but not a
    crash of its machine.
    """

    def __init__(self, path: Path, *, shared_disk: bool, create: bool = False, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._after_commit: list[Callable[[], None]] = []  # called once, in order, after the open transaction commits
        if not create and not path.is_file():
            if RunDirectory(path.parent).ledger_copy.is_file():
                raise explain(DamagedError(f"{path} is gone", path), path.parent)
            raise LedgerError(f"{path.parent} is not a run: it has no {path.name}. Start one with gridml run PROGRAM.")
        with translate_errors(path.parent), contextlib.ExitStack() as unless_opened:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
            unless_opened.callback(self._db.close)
            try:
                # WAL keeps its index in shared memory, which network file systems do not share between machines.
                (mode,) = self._db.execute(f"PRAGMA journal_mode = {'DELETE' if shared_disk else 'WAL'}").fetchone()
                self._names = [f"{path}{side}" for side in (("", "-wal") if mode == "wal" else ("",))]
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
                if create:
                    self._db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
                self._check(self._db)
                self._opened = self._files = self._stat()  # `_opened`: on opening; `_files`: after the last commit
                # The term of new leases. It is also a fencing token: only the master of the newest term can write.
                self.term: int = self.get("term", 1)
                self._read_mirror()
            except (ValueError, TypeError, LookupError) as error:  # bad JSON in a cell, or a schema that is not text
                raise DamagedError(f"{path} cannot be read: {described(error)}", path) from error
            unless_opened.pop_all()

    @abstractmethod
    def _read_mirror(self) -> None:
        """Read the state mirrored in memory from the file."""

    @abstractmethod
    def _write_batch(self) -> None:
        """Write the batched changes of the open transaction."""

    @abstractmethod
    def _drop_batch(self) -> None:
        """Discard the batched changes of the open transaction."""

    @abstractmethod
    def verify(self) -> Credited:
        """Read the file as another process does, and count its credits. Raises LedgerError if its content is not what
        was written."""

    def _check(self, db: sqlite3.Connection) -> None:
        schema = db.execute("PRAGMA user_version").fetchone()[0]
        if not schema and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise DamagedError(f"{self.path} cannot be read: it is empty", self.path)
        if schema != SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has schema {schema}, this gridml writes {SCHEMA_VERSION}. Resume it with its own gridml."
            )
        verify_file(db)

    def _stat(self) -> list[os.stat_result]:
        return [os.stat(name) for name in self._names]

    def _check_files(self) -> None:
        """Raise LedgerError or StorageError if something else has removed, replaced or changed the files since the last
        commit. SQLite would not notice, because it goes on with its open files and its cache."""
        try:
            now = self._stat()
        except OSError as error:
            if not self.path.parent.is_dir():
                raise explain(error, self.path.parent) from error
            raise self._harmed(f"{error.filename} is gone: it was removed or renamed") from error
        for name, then, each in zip(self._names, self._opened, now, strict=True):
            if not os.path.samestat(then, each):
                raise self._harmed(f"{name} was replaced by another file")
        # Times are compared only with a write-ahead log (two files). Without one, the file system may be a network file
        # system, which sets the time of a write later.
        is_touched = len(now) > 1 and now[0].st_mtime_ns != self._files[0].st_mtime_ns
        if is_touched or any(each.st_size < then.st_size for then, each in zip(self._files, now, strict=True)):
            self.verify()
            self._files = now

    def _harmed(self, problem: str) -> GridmlError:
        advice = "If you have the original elsewhere, put it back, and resume the run"
        return explain(DamagedError(f"{problem} while a master wrote to it. {advice}", self.path), self.path.parent)

    def _one(self, query: str, *values: Any) -> Any:
        """Return the first cell of the first row, None if there is no row."""
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def check_master(self) -> None:
        """Raise SupersededError if another master has taken the run over, or an error of `_check_files`."""
        if self.get("term", 1) != self.term:
            raise superseded(self.path.parent)
        self._check_files()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body in a transaction, which is committed on return.

        Raises SupersededError if another master has taken over.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")  # takes the write lock, so that the term cannot change after its check
            self.check_master()
            yield
            self._write_batch()
            self._db.execute("COMMIT")
            with contextlib.suppress(OSError):  # the next transaction reports a missing file
                self._files = self._stat()
        except BaseException as error:
            self._undo()
            if isinstance(error, sqlite3.Error):
                raise explain(error, self.path.parent) from error
            raise
        callbacks, self._after_commit = self._after_commit, []
        for callback in callbacks:
            callback()

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the open transaction commits. If the transaction fails, `callback` is never called."""
        self._after_commit.append(callback)

    def _undo(self) -> None:
        """Return to the last commit, in the file and in the mirror."""
        # The next transaction records why the run ends. It must write nothing of the failed one.
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
        with translate_errors(self.path.parent):
            copy = sqlite3.connect(temporary)
            copy.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
            with copy:
                self._db.backup(copy)
            # The fact `undone` marks a copy, because the original can later lease and credit work that the copy lacks.
            with copy:
                copy.execute("INSERT OR REPLACE INTO run VALUES ('undone', ?, ?)", encode_checksummed(True))
            copy.close()
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
    """Return the latest time in any row, 0 without one. A killed master was alive at least until that time."""
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
