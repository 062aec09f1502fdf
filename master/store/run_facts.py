"""What the run directory says of a run as a whole: its settings, its status, when it ran. Reading disturbs nobody."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from master.store.ledger_file import last_sign
from master.store.reader import standing
from master.store.sealed import unseal
from master.store.status import RunStatus
from master.store.wall_clock import AHEAD

STOPPED_EARLY = "stopped_early"  # the fact that says why a run has trained enough
TOLD_SETTINGS = "told_settings"  # the fact that has what workers train with, as it was logged


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
    return {key: unseal(*sealed) for key, *sealed in db.execute("SELECT key, value, crc32 FROM run")}


def read_best_fact(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return version, epoch (from 1), goal and value of the replica that is kept as the best, None without one."""
    best = facts.get("best")
    if best is None:
        return None
    return {"version": best["version"], "epoch": best["epoch"] + 1, "goal": best["goal"], "value": best["value"]}


def read_metrics(text: str | None, crc32: int | None) -> dict[str, Any]:
    """Return the metrics of an epoch from its row, none before it was evaluated. Raises ValueError for other JSON, and
    as `unseal` does."""
    metrics = {} if text is None else unseal(text, crc32)
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
        end_s = max(start_s, last_sign(db))
    return RunClock(start_s, end_s, tuple((since, to) for since, to in facts.get("gaps", [])))
