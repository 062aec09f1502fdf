"""Read-only access to a run that another process may drive: its status, facts and clock."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
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

MAX_HOLDER_BYTES = 1000  # bound on what is read from a lock file


def connect(root: Path) -> sqlite3.Connection:
    """Open a run's ledger read-only. Raises LedgerError if there is none, or it is damaged."""
    path = RunDirectory(root).ledger
    if not os.path.isfile(path):
        if (master := holder(root)) is not None:
            raise LedgerError(
                f"{root} has not begun yet: {master} is still building its graph. Look again in a moment."
            )
        raise LedgerError(f"{root} is not a run: it has no {path.name}. Start one with gridml run PROGRAM.")
    # If there is no writer, and no journal to replay, the file is opened as immutable, so that SQLite leaves no
    # shared-memory files behind.
    still = holder(root) is None and not any(
        path.with_name(f"{path.name}-{end}").exists() for end in ("wal", "journal")
    )
    with translate_read_errors(path), ExitStack() as unless_opened:
        uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
        unless_opened.callback(connection.close)
        if (schema := connection.execute("PRAGMA user_version").fetchone()[0]) != SCHEMA_VERSION:
            advice = "Read it with its own gridml."
            raise LedgerError(f"{path} has schema {schema}, this gridml reads {SCHEMA_VERSION}. {advice}")
        check_tables(connection)
        unless_opened.pop_all()
        return connection


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite, and errors caused by values that no master writes, into errors with advice."""
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
        problem = f"{path} cannot be read: {said}. If no master drives the run, {again} repairs it or says how."
        raise LedgerError(problem) from error


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Read inside one transaction, so that all rows belong to one moment of the run."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def opened(root: Path) -> Iterator[sqlite3.Connection]:
    """Open a run's ledger for reads that all see one moment. Raises LedgerError if there is no ledger, or it cannot be
    read."""
    with closing(connect(root)) as connection, translate_read_errors(RunDirectory(root).ledger), snapshot(connection):
        yield connection


def holder(root: Path) -> str | None:
    """Return the process that drives a run ("pid 12 on host"), None without one."""
    try:
        with os.fdopen(open_lock(root, os.O_RDONLY), errors="replace") as file:
            try:
                # A shared lock, so that two readers do not take each other for a master. Closing the file releases it.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read(MAX_HOLDER_BYTES).strip() or "another process"
            return None
    except FileNotFoundError:
        return None


def standing(root: Path, written: str) -> str:
    """Return the status of a run whose ledger says `written`. It is STOPPED if the ledger says RUNNING but no master
    runs: the master was killed."""
    return RunStatus.STOPPED if written == RunStatus.RUNNING and holder(root) is None else RunStatus(written)


EVALUATED_ON = "evaluated_on"  # a fact of the run: of how many vertices its metrics are; None: of all
ROUNDS = "rounds"  # a fact of the run: rounds of gathered pushes that ended, and pushes that came too late for theirs
STOPPED_EARLY = "stopped_early"  # a fact of the run: why it stopped before its last epoch
LOGGED_SETTINGS = "told_settings"  # a fact of the run: the batch sizes and rates that workers use, as logged
#: a fact of a run that makes no headway: {cause, reason, at_s, since_s}; null or missing while it makes headway
NO_HEADWAY = "no_headway"


@dataclass(frozen=True)
class RunClock:
    """The time for which masters have driven a run. All times are in seconds on the ledger's clock."""

    start_s: float
    end_s: float
    gaps: tuple[tuple[float, float], ...] = ()  # (from, to) of each period without a master, in order

    def at(self, time_s: float) -> float:
        """Return the seconds for which the run has been driven, without gaps, until `time_s`."""
        return time_s - self.start_s - sum(max(0.0, min(time_s, to) - since) for since, to in self.gaps)


@dataclass(frozen=True)
class PushCosts:
    """Measured costs of a push, in seconds."""

    push_s: float  # time for which the worker does not train
    travel_s: float  # from sending the push to its reply
    merge_s: float  # time that the master takes to merge it

    FACT: ClassVar[str] = "push_costs"


def read_push_costs(db: sqlite3.Connection) -> PushCosts | None:
    """Return the costs of a push as the master last recorded them, None before the first was answered."""
    costs = read_facts(db).get(PushCosts.FACT)
    return None if costs is None else PushCosts(**{name: float(value) for name, value in costs.items()})


def read_facts(db: sqlite3.Connection) -> dict[str, Any]:
    """Return the facts in the ledger's table `run`, by name: the run's status, its start and end, and others."""
    return {key: decode_checksummed(*cells) for key, *cells in db.execute("SELECT key, value, crc32 FROM run")}


def read_best_fact(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return version, epoch (from 1), goal and value of the best replica, None without one."""
    best = facts.get("best")
    if best is None:
        return None
    return {"version": best["version"], "epoch": best["epoch"] + 1, "goal": best["goal"], "value": best["value"]}


def read_metrics(text: str | None, crc32: int | None) -> dict[str, Any]:
    """Return the metrics of an epoch from its row; empty before its evaluation. Raises ValueError for JSON that is not
    an object, and the errors of `decode_checksummed`."""
    metrics = {} if text is None else decode_checksummed(text, crc32)
    if not isinstance(metrics, dict):
        raise ValueError(f"the metrics of an epoch are {type(metrics).__name__}, expected an object")
    return metrics


def read_status(db: sqlite3.Connection, root: Path) -> RunStatus:
    """Return the status of the run in `root`. A master that was killed leaves RUNNING, which is read as STOPPED."""
    return RunStatus(standing(root, read_facts(db).get("status", RunStatus.RUNNING)))


def read_ahead(db: sqlite3.Connection) -> float:
    """Return the seconds by which the ledger's times are ahead of the wall clock."""
    return float(read_facts(db).get(AHEAD, 0.0))


def read_now(db: sqlite3.Connection) -> float:
    """Return the current time on the clock of the ledger."""
    return time.time() + read_ahead(db)


def read_clock(db: sqlite3.Connection, root: Path, now: float | None = None) -> RunClock:
    """Return the run's start, its end, and the gaps in which no master ran.

    The end is `now` for a run in progress. For an unfinished run without a master it is the time of the last activity.
    """
    facts = read_facts(db)
    now = read_now(db) if now is None else now
    start_s = float(facts.get("started_s", now))
    status = read_status(db, root)
    end_s = now
    if status is RunStatus.FINISHED:
        end_s = float(facts.get("ended_s", now))
    elif status is not RunStatus.RUNNING:
        # A killed master records no end: it lived at least until the latest time in any row.
        end_s = max(start_s, last_activity_s(db))
    return RunClock(start_s, end_s, tuple((since, to) for since, to in facts.get("gaps", [])))
