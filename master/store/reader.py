"""Reading a run from outside: another process may drive it at the same time, and nothing here disturbs that one."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridml.errors import LedgerError
from gridml.protocol.text import described
from master.store.diagnosis import Trouble, diagnose, explain
from master.store.rundir import RunDirectory, command, open_lock
from master.store.schema import SCHEMA_VERSION, check_tables
from master.store.status import RunStatus

LONGEST_HOLDER = 1000  # characters


def connect(root: Path) -> sqlite3.Connection:
    """A connection to a run's ledger that cannot write. Raises LedgerError when there is none, or it is damaged."""
    path = RunDirectory(root).ledger
    if not os.path.isfile(path):
        if (master := holder(root)) is not None:
            raise LedgerError(
                f"{root} has not begun yet: {master} is still building its graph. Look again in a moment."
            )
        raise LedgerError(f"{root} is not a run: it has no {path.name}. Start one with gridml run PROGRAM.")
    # Where nobody writes and nothing waits to be taken over, SQLite need not leave its files of shared memory behind.
    still = holder(root) is None and not any(
        path.with_name(f"{path.name}-{end}").exists() for end in ("wal", "journal")
    )
    with explained(path):
        uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
        schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema != SCHEMA_VERSION:
        connection.close()
        raise LedgerError(
            f"{path} has schema {schema}, this gridml reads {SCHEMA_VERSION}. Read it with its own gridml."
        )
    try:
        with explained(path):
            check_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what SQLite says of a ledger that cannot be read, and what comes of values that no master writes, into an
    error for people."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        backup = path.with_name("ledger.backup.db")
        raise LedgerError(
            f"{path} holds what no master of gridml writes ({described(error)}). If something else has changed it, put "
            f"back a copy, such as {backup}; if nothing has, this is a defect of gridml: report it, with the ledger."
        ) from error
    except sqlite3.Error as error:
        trouble, said = diagnose(error, path.parent)
        if trouble not in (Trouble.DAMAGED, Trouble.OTHER):
            raise explain(error, path.parent, "look again") from error
        again = command("resume", path.parent)
        problem = f"{path} cannot be read: {said}. If nobody drives the run, {again} mends it or says how."
        raise LedgerError(problem) from error


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside belongs to one moment of the run."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def opened(root: Path) -> Iterator[sqlite3.Connection]:
    """A run's ledger as it stands at one moment. Raises LedgerError when there is none, or it cannot be read."""
    connection = connect(root)
    try:
        with explained(RunDirectory(root).ledger), snapshot(connection):
            yield connection
    finally:
        connection.close()


def holder(root: Path) -> str | None:
    """Who drives a run ("pid 12 on host"), None when nobody does.

    Found by asking for the master's lock, shared with others who ask; it is given back at once.
    """
    try:
        with os.fdopen(open_lock(root, os.O_RDONLY)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read(LONGEST_HOLDER).strip() or "another process"
            return None
    except FileNotFoundError:
        return None


def standing(root: Path, written: str) -> str:
    """Return the status of a run whose ledger says `written`: a killed master could not write that it ended."""
    return RunStatus.STOPPED if written == RunStatus.RUNNING and holder(root) is None else RunStatus(written)
