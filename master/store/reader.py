"""Reads a run from outside, while another process may drive it, without disturbing that process.

The run directory also says of the run as a whole: its settings, its status, when it ran.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gridml.errors import LedgerError
from gridml.protocol.foreign import described
from master.store.diagnosis import FileTrouble, diagnose, explain
from master.store.journal import AHEAD
from master.store.ledger_file import last_activity_s
from master.store.rundir import RunDirectory, RunStatus, command, open_lock
from master.store.schema import SCHEMA_VERSION, check_tables, decode_checksummed

MAX_HOLDER_BYTES = 1000  # characters


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
    with translate_read_errors(path):
        uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
        schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema != SCHEMA_VERSION:
        connection.close()
        raise LedgerError(
            f"{path} has schema {schema}, this gridml reads {SCHEMA_VERSION}. Read it with its own gridml."
        )
    try:
        with translate_read_errors(path):
            check_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
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
        if trouble not in (FileTrouble.DAMAGED, FileTrouble.OTHER):
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
    with closing(connect(root)) as connection, translate_read_errors(RunDirectory(root).ledger), snapshot(connection):
        yield connection


def holder(root: Path) -> str | None:
    """Who drives a run ("pid 12 on host"), None when nobody does.

    Found by asking for the master's lock, shared with others who ask; it is given back at once.
    """
    try:
        with os.fdopen(open_lock(root, os.O_RDONLY)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read(MAX_HOLDER_BYTES).strip() or "another process"
            return None
    except FileNotFoundError:
        return None


def standing(root: Path, written: str) -> str:
    """Return the status of a run whose ledger says `written`: a killed master could not write that it ended."""
    return RunStatus.STOPPED if written == RunStatus.RUNNING and holder(root) is None else RunStatus(written)


STOPPED_EARLY = "stopped_early"  # the fact that says why a run has trained enough
LOGGED_SETTINGS = "told_settings"  # the fact that has what workers train with, as it was logged


@dataclass(frozen=True)
class RunClock:
    """Seconds of a run, without the `gaps` [(from, to)] in which no master ran. All times are the ledger's."""

    start_s: float
    end_s: float
    gaps: tuple[tuple[float, float], ...] = ()

    def at(self, time_s: float) -> float:
        """Return the seconds of the run at a point in time."""
        return time_s - self.start_s - sum(max(0.0, min(time_s, to) - since) for since, to in self.gaps)


@dataclass(frozen=True)
class PushCosts:
    """What a push was measured to take, in seconds: from its worker's training, until it is answered, and of the
    master."""

    push_s: float
    travel_s: float
    merge_s: float

    FACT: ClassVar[str] = "push_costs"


def read_push_costs(db: sqlite3.Connection) -> PushCosts | None:
    """Return what a push of the run costs as its master last wrote down, None before one was answered."""
    costs = read_facts(db).get(PushCosts.FACT)
    return None if costs is None else PushCosts(**{name: float(value) for name, value in costs.items()})


def read_facts(db: sqlite3.Connection) -> dict[str, Any]:
    """Return the ledger's table `run`: the run's status, when it started and ended, and the like, by name."""
    return {key: decode_checksummed(*sealed) for key, *sealed in db.execute("SELECT key, value, crc32 FROM run")}


def read_best_fact(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return version, epoch (from 1), goal and value of the replica that is kept as the best, None without one."""
    best = facts.get("best")
    if best is None:
        return None
    return {"version": best["version"], "epoch": best["epoch"] + 1, "goal": best["goal"], "value": best["value"]}


def read_metrics(text: str | None, crc32: int | None) -> dict[str, Any]:
    """Return the metrics of an epoch from its row, none before it was evaluated. Raises ValueError for other JSON, and
    as `decode_checksummed` does."""
    metrics = {} if text is None else decode_checksummed(text, crc32)
    if not isinstance(metrics, dict):
        raise ValueError(f"the metrics of an epoch are {type(metrics).__name__}, expected an object")
    return metrics


def read_status(db: sqlite3.Connection, root: Path) -> RunStatus:
    """Return how the run in `root` stands, which a master that was killed could not write."""
    return RunStatus(standing(root, read_facts(db).get("status", RunStatus.RUNNING)))


def read_ahead(db: sqlite3.Connection) -> float:
    """Return the seconds by which the ledger's times are ahead of the wall's clock: they go on when that is set."""
    return float(read_facts(db).get(AHEAD, 0.0))


def read_now(db: sqlite3.Connection) -> float:
    """Return what time it is for the master that writes the ledger."""
    return time.time() + read_ahead(db)


def read_clock(db: sqlite3.Connection, root: Path, now: float | None = None) -> RunClock:
    """Return when the run began, when it ended or up to when something is known of it, and when no master ran.

    A master that was killed left no word: it lived until the last moment that a row of the ledger names.
    """
    facts = read_facts(db)
    now = read_now(db) if now is None else now
    start_s = float(facts.get("started_s", now))
    status = read_status(db, root)
    end_s = now
    if status is RunStatus.FINISHED:
        end_s = float(facts.get("ended_s", now))
    elif status is not RunStatus.RUNNING:
        end_s = max(start_s, last_activity_s(db))
    return RunClock(start_s, end_s, tuple((since, to) for since, to in facts.get("gaps", [])))
