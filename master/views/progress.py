"""Read how far a run has come, at a glance: however long it is, only epochs, workers and the newest rows are read."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from master.state.failures import AVOIDED
from master.state.jobs import State
from master.store.journal import WARNINGS
from master.store.reader import LOGGED_SETTINGS, read_facts, read_metrics
from master.store.rundir import RunStatus
from master.store.schema import read_recent
from master.store.spec import FACT
from master.views.distrust import (
    AvoidedMachine,
    QuarantinedWorker,
    now_avoided,
    read_avoided_machines,
    read_quarantined,
)

PUSHES = 50  # that the mean staleness looks back on
WINDOW_S = 30.0  # that the speed looks back on
MAX_VERSIONS = 1000  # that it looks at, at most
MIN_VERSIONS = 8  # versions it looks back on where pushes are rare
_STATES = """
SELECT state, started_s IS NOT NULL, count(*) FROM workers
WHERE NOT (coalesce(cancelled, 0) AND coalesce(graceful, 0)) GROUP BY 1, 2
"""
_SPENT = """
SELECT coalesce(sum(min(credited * train_s / nullif(trained, 0), life_s)), 0.0), coalesce(sum(life_s), 0.0)
FROM (SELECT credited, trained, train_s, coalesce(ended_s, ?) - started_s AS life_s
      FROM workers WHERE started_s IS NOT NULL)
"""  # the sum of `credited_s` of all workers, and that of their lives


@dataclass(frozen=True)
class AvoidedWorker:
    """A worker that failed `failures` times in a row, for the reason `because`: it gets no lease for `seconds_left`."""

    worker: str
    machine: str
    failures: int
    seconds_left: float
    because: str


@dataclass(frozen=True)
class HeldWorkers:
    """Workers whose jobs are on hold for one reason."""

    workers: list[str]
    because: str


@dataclass(frozen=True)
class RecentWarning:
    """A warning, and how long ago it was."""

    seconds_ago: float
    text: str


@dataclass(frozen=True)
class RunProgress:
    """`credited` of `vertices` of `epoch` (from 1), the oldest that is open, and `all_credited` of `total` of the run.

    `alive` of the `wanted` workers run, `queued` wait for a machine, the jobs of others are `held`, for reasons that
    `held_because` gives with what is done about them; `lost` were taken away or crashed. `warnings` are the last ones
    since this master began. `staleness` is
    the mean of the last pushes, `per_second` vertices credited lately; `metrics` are those of epoch `evaluated`,
    `logged` means of what f logged lately. None: nothing yet.
    `avoided` are those of the living that get no lease for a while, `quarantined` those of all that are trusted no
    more, and on `avoided_machines` no worker starts. More than `helpful` workers would hardly help, as far as the
    pushes show. Of the workers that are wanted only so many are `asked` for: None, all. `settings` say which
    batch and learning rates workers use in place of the program's.
    """

    status: RunStatus
    epoch: int
    epochs: int | None
    credited: int
    vertices: int
    all_credited: int
    total: int | None
    alive: int
    queued: int
    lost: int
    staleness: float | None
    per_second: float | None
    goodput: float | None
    seconds_left: float | None
    evaluated: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    avoided: list[AvoidedWorker] = field(default_factory=list)
    quarantined: list[QuarantinedWorker] = field(default_factory=list)
    avoided_machines: list[AvoidedMachine] = field(default_factory=list)
    wanted: int | None = None
    asked: int | None = None
    asked_because: str | None = None
    held: int = 0
    held_because: list[HeldWorkers] = field(default_factory=list)
    warnings: list[RecentWarning] = field(default_factory=list)
    helpful: int | None = None
    helpful_because: str | None = None
    placement: str | None = None
    settings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return all fields by name; `judged` is the former name of `evaluated`."""
        return {**dataclasses.asdict(self), "judged": self.evaluated}


def read_progress(connection: sqlite3.Connection, now: float) -> RunProgress:
    """Return the progress as the ledger has it, `now` in seconds of the clock it was written by."""
    one = connection.execute
    facts = read_facts(connection)
    epoch, vertices, credited = one(
        "SELECT epoch, vertices, credited FROM epochs ORDER BY closed_s IS NOT NULL, "
        "CASE WHEN closed_s IS NULL THEN epoch ELSE -epoch END LIMIT 1"
    ).fetchone() or (0, 0, 0)
    all_credited = one("SELECT coalesce(sum(credited), 0) FROM epochs").fetchone()[0]
    evaluation = one(
        "SELECT epoch, metrics, metrics_crc32 FROM epochs WHERE metrics IS NOT NULL AND metrics != '{}' ORDER BY epoch "
        "DESC LIMIT 1"
    ).fetchone() or (None, None, None)
    # A worker that its back end never started is neither alive nor lost, nor is one that was told to leave, and did.
    states = {(s, begun): n for s, begun, n in one(_STATES)}
    spent_s, worker_s = one(_SPENT, (now,)).fetchone()
    staleness = one(
        "SELECT avg(staleness) FROM (SELECT staleness FROM credits ORDER BY rowid DESC LIMIT ?)", (PUSHES,)
    ).fetchone()[0]
    total = facts.get("total")
    since = max((to for _, to in facts.get("gaps", [])), default=0.0)  # when this master began
    per_second = _speed(connection, since, now)
    alive = states.get((State.RUNNING, 1), 0) + states.get((State.OUT_OF_REACH, 1), 0)
    held = _held(connection)
    return RunProgress(
        status=RunStatus(facts.get("status", RunStatus.RUNNING)),
        epoch=epoch + 1,
        epochs=total // vertices if total and vertices else None,
        credited=credited,
        vertices=vertices,
        all_credited=all_credited,
        total=total,
        alive=alive,
        queued=states.get((State.QUEUED, 0), 0),
        lost=states.get((State.EVICTED, 1), 0) + states.get((State.LOST, 1), 0),
        staleness=staleness,
        per_second=per_second,
        goodput=measured_goodput(spent_s, worker_s),
        seconds_left=(total - all_credited) / per_second if total and per_second and alive else None,
        evaluated=None if evaluation[0] is None else evaluation[0] + 1,
        metrics=read_metrics(*evaluation[1:]),
        logged=read_recent(connection),
        avoided=_avoided(connection, now),
        quarantined=read_quarantined(connection),
        avoided_machines=now_avoided(read_avoided_machines(connection, now)),
        wanted=facts.get("workers"),
        held=sum(len(group.workers) for group in held),
        held_because=held,
        warnings=[RecentWarning(max(0.0, now - at_s), text) for at_s, text in facts.get(WARNINGS, []) if at_s >= since],
        **read_choices(facts),
    )


def read_choices(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many workers a run asks for, how many would help, and why; what they train with, and how vertices are
    placed: by the fields of a progress and of a report."""
    asked, helpful = facts.get("asked") or {}, facts.get("helpful") or {}
    return {
        "asked": asked.get("workers"),
        "asked_because": asked.get("reason"),
        "helpful": helpful.get("workers"),
        "helpful_because": helpful.get("reason"),
        "settings": [told["text"] for told in facts.get(LOGGED_SETTINGS, [])],
        "placement": facts.get(FACT, {}).get("text"),
    }


def measured_goodput(spent_s: float, worker_s: float) -> float | None:
    """Return the share of the workers' time that went into credited vertices, given the sum of `credited_s` of all of
    them; None before any was credited."""
    return spent_s / worker_s if spent_s > 0 and worker_s > 0 else None


def without_master(progress: RunProgress) -> RunProgress:
    """Return the progress of a run that no master drives: nobody works, whatever the ledger says."""
    status = RunStatus.STOPPED if progress.status is RunStatus.RUNNING else progress.status
    nobody = replace(progress, alive=0, queued=0, held=0, held_because=[], avoided=[])
    return replace(nobody, status=status, per_second=None, seconds_left=None)


def _avoided(connection: sqlite3.Connection, now: float) -> list[AvoidedWorker]:
    """Return the workers that fail and are left without a lease, those for longest first."""
    rows = connection.execute(
        "SELECT worker, coalesce(machine, ''), failed, avoided_until_s - ?, coalesce(avoided_because, '') FROM workers "
        "WHERE ended_s IS NULL AND avoided_until_s > ? AND failed >= ? ORDER BY avoided_until_s DESC, worker",
        (now, now, AVOIDED),
    )
    return [AvoidedWorker(*row) for row in rows]


def _held(connection: sqlite3.Connection) -> list[HeldWorkers]:
    """Return the workers whose jobs are on hold, those of the reason that most of them have first."""
    because: dict[str, list[str]] = {}
    rows = "SELECT worker, coalesce(detail, '') FROM workers WHERE state = ? AND ended_s IS NULL ORDER BY submitted_s"
    for worker, detail in connection.execute(rows, (State.HELD,)):
        because.setdefault(detail, []).append(worker)
    return sorted((HeldWorkers(who, why) for why, who in because.items()), key=lambda group: -len(group.workers))


def _speed(connection: sqlite3.Connection, since: float, now: float) -> float | None:
    """Return the vertices credited per second lately, None before there are two versions; it falls while none come.

    Versions before `since`, when the master began, do not count: nothing came while none ran.
    """
    newest = connection.execute(
        "SELECT credited, at_s FROM versions ORDER BY version DESC LIMIT ?", (MAX_VERSIONS,)
    ).fetchall()
    newest = [(credited, at_s) for credited, at_s in newest if at_s >= since]
    recent: list[tuple[int, float]] = [
        row for i, row in enumerate(newest) if i < MIN_VERSIONS or now - row[1] <= WINDOW_S
    ]
    if len(recent) < 2 or now <= recent[-1][1]:
        return None
    return (recent[0][0] - recent[-1][0]) / (now - recent[-1][1])
