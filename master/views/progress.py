"""Progress of a run, read from its ledger. Only epochs, workers and the newest rows are read, so the time does not
depend on the number of credits."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from master.state.failures import AVOID_AFTER, Alteration
from master.state.jobs import State
from master.store.journal import WARNINGS
from master.store.reader import LOGGED_SETTINGS, NO_HEADWAY, RunClock, read_facts, read_metrics
from master.store.rundir import RunStatus
from master.store.schema import read_recent
from master.store.spec import FACT
from master.telemetry.worth import KeptTraining, WorthFacts, worth
from master.views.report_parts import (
    AvoidedMachine,
    QuarantinedWorker,
    now_avoided,
    read_avoided_machines,
    read_quarantined,
)

PUSHES = 50  # number of newest pushes over which staleness is averaged
WINDOW_S = 30.0  # window of the speed
MAX_VERSIONS = 1000  # maximum number of versions read for the speed
MIN_VERSIONS = 8  # if the window has fewer versions, the speed is taken over this many
_STATES = """
SELECT state, started_s IS NOT NULL, count(*) FROM workers
WHERE NOT (coalesce(cancelled, 0) AND coalesce(graceful, 0)) GROUP BY 1, 2
"""
_SPENT = """
SELECT coalesce(sum(min(credited * train_s / nullif(trained, 0), life_s)), 0.0), coalesce(sum(life_s), 0.0)
FROM (SELECT credited, trained, train_s, coalesce(ended_s, ?) - started_s AS life_s
      FROM workers WHERE started_s IS NOT NULL)
"""  # (sum of `report.credited_s` over all workers, sum of their lives), in seconds


@dataclass(frozen=True)
class AvoidedWorker:
    """A worker that gets no lease for a while because it failed repeatedly."""

    worker: str
    machine: str
    failures: int  #: number of failures in a row
    seconds_left: float  #: until it gets a lease again
    because: str


@dataclass(frozen=True)
class HeldWorkers:
    """Workers whose jobs are held for the same reason."""

    workers: list[str]
    because: str


@dataclass(frozen=True)
class NoHeadway:
    """The cause why nothing is credited, and since when."""

    cause: str  #: a value of `Stall` (master/fleet/crash_loop.py)
    seconds: float  #: since the last credit, or since this master began
    reason: str  #: explanation of the cause, with advice


@dataclass(frozen=True)
class RecentWarning:
    """A recent warning."""

    seconds_ago: float
    text: str


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run at one moment. The field names are those of `gridml status --json`; None: not known yet."""

    status: RunStatus
    epoch: int  #: the oldest open epoch, from 1
    epochs: int | None
    credited: int  #: vertices credited in `epoch`
    vertices: int  #: vertices of one epoch
    all_credited: int  #: vertices credited in the run
    total: int | None  #: vertices of all epochs
    alive: int  #: workers that run
    queued: int  #: workers that wait for a machine
    lost: int  #: workers that were taken away or crashed
    staleness: float | None  #: mean over the last `PUSHES` pushes
    per_second: float | None  #: vertices credited per second, over `WINDOW_S`
    goodput: float | None  #: share of the workers' time spent on credited vertices
    seconds_left: float | None
    evaluated: int | None = None  #: the last evaluated epoch, from 1
    metrics: dict[str, Any] = field(default_factory=dict)  #: metrics of epoch `evaluated`
    logged: dict[str, float] = field(default_factory=dict)  #: recent means of what f logged
    avoided: list[AvoidedWorker] = field(default_factory=list)
    quarantined: list[QuarantinedWorker] = field(default_factory=list)
    avoided_machines: list[AvoidedMachine] = field(default_factory=list)
    wanted: int | None = None  #: number of workers in the settings
    asked: int | None = None  #: workers requested, if fewer than `wanted`
    asked_because: str | None = None
    held: int = 0  #: workers whose jobs are held
    held_because: list[HeldWorkers] = field(
        default_factory=list
    )  #: held workers by reason; the reason says what is done about it
    unreadable: int = 0  #: number of messages that were damaged or malformed
    warnings: list[RecentWarning] = field(default_factory=list)  #: the last warnings since this master began
    no_headway: NoHeadway | None = None  #: None: the run makes headway
    worth: float | None = None  #: time that one worker would need for the same progress, over the time of the workers
    worth_because: str | None = None
    placement: str | None = None
    settings: list[str] = field(default_factory=list)  #: batch and learning rates used instead of the program's

    def to_json(self) -> dict[str, Any]:
        """Return all fields by name. `judged` is the deprecated name of `evaluated`."""
        return {**dataclasses.asdict(self), "judged": self.evaluated}


def read_progress(connection: sqlite3.Connection, now: float) -> RunProgress:
    """Return the progress from the ledger; `now` is in seconds of the ledger's clock."""
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
    # Workers that never started, or that were released and left, are neither alive nor lost.
    states = {(s, begun): n for s, begun, n in one(_STATES)}
    spent_s, worker_s = one(_SPENT, (now,)).fetchone()
    staleness = one(
        "SELECT avg(staleness) FROM (SELECT staleness FROM credits ORDER BY rowid DESC LIMIT ?)", (PUSHES,)
    ).fetchone()[0]
    total = facts.get("total")
    since = max((to for _, to in facts.get("gaps", [])), default=0.0)  # the start of this master
    per_second = _speed(connection, since, now)
    alive = states.get((State.RUNNING, 1), 0) + states.get((State.OUT_OF_REACH, 1), 0)
    held = _held(connection)
    stall = facts.get(NO_HEADWAY) or {"at_s": -1.0}
    is_stalled = stall["at_s"] >= since  # found by this master
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
        seconds_left=(total - all_credited) / per_second if total and per_second and alive and not is_stalled else None,
        evaluated=None if evaluation[0] is None else evaluation[0] + 1,
        metrics=read_metrics(*evaluation[1:]),
        logged=read_recent(connection),
        avoided=_avoided(connection, now),
        quarantined=read_quarantined(connection),
        avoided_machines=now_avoided(read_avoided_machines(connection, now)),
        wanted=facts.get("workers"),
        held=sum(len(group.workers) for group in held),
        held_because=held,
        unreadable=one(
            "SELECT coalesce(sum(pushes), 0) FROM altered WHERE how = ?", (Alteration.UNREADABLE,)
        ).fetchone()[0],
        no_headway=NoHeadway(stall["cause"], now - stall["since_s"], stall["reason"]) if is_stalled else None,
        warnings=[RecentWarning(max(0.0, now - at_s), text) for at_s, text in facts.get(WARNINGS, []) if at_s >= since],
        **read_choices(facts),
        **read_worth(facts, spent_s, RunClock(facts.get("started_s", now), now, tuple(facts.get("gaps", [])))),
    )


def read_choices(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choices that the run made by itself, with reasons: number of workers, settings, placement. The keys
    are fields of RunProgress and of a report."""
    asked = facts.get("asked") or {}
    return {
        "asked": asked.get("workers"),
        "asked_because": asked.get("reason"),
        "settings": [logged["text"] for logged in facts.get(LOGGED_SETTINGS, [])],
        "placement": facts.get(FACT, {}).get("text"),
    }


def read_worth(facts: Mapping[str, Any], spent_s: float, clock: RunClock) -> dict[str, Any]:
    """Return what the workers of a run are worth, and why. `spent_s` is as in `measured_goodput`. The keys are fields
    of RunProgress and of a report."""
    trained = KeptTraining(**facts.get(KeptTraining.FACT, {}))
    elapsed_s = max(0.0, clock.at(clock.end_s))
    found, reason = worth(WorthFacts(facts.get("workers") or 1, trained, spent_s, elapsed_s))
    return {"worth": found, "worth_because": None if found is None else reason}


def measured_goodput(spent_s: float, worker_s: float) -> float | None:
    """Return the share of the workers' time (`worker_s`) that was spent on credited vertices (`spent_s`); None before
    any vertex was credited."""
    return spent_s / worker_s if spent_s > 0 and worker_s > 0 else None


def without_master(progress: RunProgress) -> RunProgress:
    """Return the progress of a run that no master drives. Workers that the ledger still lists do not count."""
    status = RunStatus.STOPPED if progress.status is RunStatus.RUNNING else progress.status
    idle = replace(progress, alive=0, queued=0, held=0, held_because=[], avoided=[], no_headway=None)
    return replace(idle, status=status, per_second=None, seconds_left=None)


def _avoided(connection: sqlite3.Connection, now: float) -> list[AvoidedWorker]:
    """Return the failing workers that get no lease now. The worker that must wait longest comes first."""
    rows = connection.execute(
        "SELECT worker, coalesce(machine, ''), failed, avoided_until_s - ?, coalesce(avoided_because, '') FROM workers "
        "WHERE ended_s IS NULL AND avoided_until_s > ? AND failed >= ? ORDER BY avoided_until_s DESC, worker",
        (now, now, AVOID_AFTER),
    )
    return [AvoidedWorker(*row) for row in rows]


def _held(connection: sqlite3.Connection) -> list[HeldWorkers]:
    """Return the workers whose jobs are held, by reason, the most frequent reason first."""
    because: dict[str, list[str]] = {}
    rows = "SELECT worker, coalesce(detail, '') FROM workers WHERE state = ? AND ended_s IS NULL ORDER BY submitted_s"
    for worker, detail in connection.execute(rows, (State.HELD,)):
        because.setdefault(detail, []).append(worker)
    return sorted((HeldWorkers(who, why) for why, who in because.items()), key=lambda group: -len(group.workers))


def _speed(connection: sqlite3.Connection, since: float, now: float) -> float | None:
    """Return the recent vertices credited per second; None before there are two versions.

    The speed falls while no new version comes. Versions before `since`, when this master began, do not count: no worker
    was served while there was no master.
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
