"""What a run did, how fast, and what was lost: every figure is counted from the rows of its ledger, none is assumed.

A report can be made at any time, beside a running master too.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from master.backends.registry import read_settings
from master.state.failures import AVOIDED
from master.state.jobs import State
from master.store.reader import (
    STOPPED_EARLY,
    TOLD_SETTINGS,
    RunClock,
    opened,
    read_best_fact,
    read_clock,
    read_facts,
    read_metrics,
    read_status,
)
from master.store.rundir import ORPHANED, RunStatus
from master.store.schema import read_by_epoch
from master.store.settings import Settings
from master.store.spec import FACT
from master.views.distrust import (
    AlteredPushes,
    AvoidedMachine,
    QuarantinedWorker,
    read_altered,
    read_avoided_machines,
    read_quarantined,
)
from master.views.money import Money, read_money

Ints = NDArray[np.int64]
_LAST_SIZING = "SELECT text FROM events WHERE topic = 'sizing' ORDER BY rowid DESC LIMIT 1"


@dataclass(frozen=True)
class EpochReport:
    """One pass over the vertices; `epoch` counts from 1.

    `duplicated`: credits given twice. `lost`: vertices of a closed epoch without a credit; `left`: those of an open
    one. `wasted`: vertices trained under leases that ended before they were credited. `staleness` is the mean over the
    `pushes`, `logged` what f logged, means over credited vertices. Times are seconds of the run, without those in
    which no master ran.
    """

    epoch: int
    vertices: int
    credited: int
    duplicated: int
    lost: int
    left: int
    wasted: int
    pushes: int
    staleness: float | None
    opened_s: float
    closed_s: float | None
    metrics: dict[str, Any]
    logged: dict[str, float]


@dataclass(frozen=True)
class MachineReport:
    """One place of the back end: how many workers it had, and how they were taken away."""

    machine: str
    workers: int
    sigterm: int
    sigkill: int


@dataclass(frozen=True)
class FailureReport:
    """The user's code failed on vertices `first` to `last` (-1 where nobody can say which) of an epoch, from 1: who
    failed, on which machine, and what was decided on it."""

    at_s: float
    worker: str
    epoch: int
    message: str
    first: int
    last: int
    machine: str
    reason: str


@dataclass(frozen=True)
class FailingWorker:
    """A worker whose last `failures` tries all failed, so that it was left without a lease for a while."""

    worker: str
    machine: str
    failures: int
    because: str


@dataclass(frozen=True)
class Report:
    """`vertices` are those of one epoch. `workers` were requested; `lives` processes were started for them.

    `kills` = `sigterm` (warned first) + `sigkill` (without warning); `crashed` ended by themselves.
    `worker_s` is what all of them lived, `goodput` the share of that which credited vertices took at the speed that
    each worker says it trains at, but no longer than it lived. `flops` are the floating-point operations per second of
    credited work. `repetitions` counts how often a push was trained again for a check. More than `helpful` workers
    would hardly help, as far as the pushes show; None where they do not. Of the workers that are wanted `asked` were
    asked for at last, None: all. `settings` say which batch and learning rates workers use in place of the
    program's, as it was logged. `stopped_early` says why a run ended before its last epoch, None where it did not.
    `best` has `version`, `epoch`, `goal` and `value` of the replica that is kept as the best. `sizing` says what sizes
    the chunks have at last, and why; None before lifetimes were fitted. `money` is what instances cost that the run
    launched itself, None where it launched none.
    """

    run_dir: str
    status: RunStatus
    stopped_because: str | None
    program: str
    backend: str
    vertices: int
    epochs_wanted: int | None
    workers: int
    lives: int
    kills: int
    sigterm: int
    sigkill: int
    crashed: int
    masters: int
    wall_s: float
    worker_s: float
    goodput: float | None
    flops: float | None
    flops_per_vertex: float | None
    vertices_per_s: float | None
    credited: int
    duplicated: int
    lost: int
    wasted: int
    pushes: int
    repetitions: int
    versions: int
    staleness: float | None
    bytes_up: int
    bytes_down: int
    asked: int | None
    asked_because: str | None
    helpful: int | None
    helpful_because: str | None
    settings: list[str]
    placement: str | None
    stopped_early: str | None
    best: dict[str, Any] | None
    sizing: str | None
    money: Money | None
    machines: list[MachineReport]
    failures: list[FailureReport]
    avoided: list[FailingWorker]
    altered_pushes: list[AlteredPushes]
    quarantined: list[QuarantinedWorker]
    avoided_machines: list[AvoidedMachine]
    epochs: list[EpochReport]

    def __str__(self) -> str:
        """Return it as `gridml report` prints it."""
        from master.views.terminal import report_text

        return report_text(self)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def report(root: Path, now: float | None = None) -> Report:
    """Return the report of a run, as at `now` if it is still running.

    Raises LedgerError when the directory holds no run, or one that cannot be read.
    """
    with opened(root) as connection:
        return _report(connection, root, read_settings(root, read_facts(connection).get("settings")), now)


def _report(db: sqlite3.Connection, root: Path, settings: Settings, now: float | None) -> Report:
    facts = read_facts(db)
    status = read_status(db, root)
    clock = read_clock(db, root, now)
    workers = _dicts(db.execute("SELECT * FROM workers WHERE started_s IS NOT NULL ORDER BY submitted_s, worker"))
    killed = [w for w in workers if _killed(w)]
    epochs = _epochs(db, clock)
    wall_s = max(0.0, clock.at(clock.end_s))
    worker_s = sum(_life_s(w, clock) for w in workers)
    credited = sum(e.credited for e in epochs)
    spent_s = sum(credited_s(w["credited"], w["trained"], w["train_s"], _life_s(w, clock)) for w in workers)
    flops_per_vertex = facts.get("flops_per_vertex")
    total, helpful = facts.get("total"), facts.get("helpful") or {}
    asked = facts.get("asked") or {}
    vertices = epochs[0].vertices if epochs else 0
    pushes, staleness = db.execute("SELECT count(*), avg(staleness) FROM credits").fetchone()
    return Report(
        run_dir=str(root),
        status=status,
        stopped_because=facts.get("stopped_because") if status in (RunStatus.FAILED, RunStatus.CANCELLED) else None,
        program=settings.program.name,
        backend=settings.backend,
        vertices=vertices,
        epochs_wanted=total // vertices if total and vertices else None,
        workers=settings.workers,
        lives=len(workers),
        kills=len(killed),
        sigterm=sum(bool(w["graceful"]) for w in killed),
        sigkill=sum(not w["graceful"] for w in killed),
        crashed=sum(w["state"] == State.LOST and w["detail"] != ORPHANED for w in workers),
        masters=facts.get("masters", 0),
        wall_s=wall_s,
        worker_s=worker_s,
        goodput=measured_goodput(spent_s, worker_s),
        flops=flops_per_vertex * credited / wall_s if flops_per_vertex and wall_s else None,
        flops_per_vertex=flops_per_vertex,
        vertices_per_s=credited / wall_s if wall_s else None,
        credited=credited,
        duplicated=sum(e.duplicated for e in epochs),
        lost=sum(e.lost for e in epochs),
        wasted=sum(e.wasted for e in epochs),
        pushes=pushes,
        repetitions=db.execute("SELECT count(*) FROM events WHERE topic = 'spot check'").fetchone()[0],
        versions=db.execute("SELECT count(*) FROM versions").fetchone()[0],
        staleness=staleness,
        bytes_up=sum(w["bytes_up"] for w in workers),
        bytes_down=sum(w["bytes_down"] for w in workers),
        asked=asked.get("workers"),
        asked_because=asked.get("reason"),
        helpful=helpful.get("workers"),
        helpful_because=helpful.get("reason"),
        settings=[told["text"] for told in facts.get(TOLD_SETTINGS, [])],
        placement=facts.get(FACT, {}).get("text"),
        stopped_early=facts.get(STOPPED_EARLY),
        best=read_best_fact(facts),
        sizing=next((text for (text,) in db.execute(_LAST_SIZING)), None),
        money=read_money(root, flops_per_vertex * credited if flops_per_vertex else None, now),
        machines=_machines(workers),
        failures=[
            FailureReport(clock.at(at_s), worker, epoch + 1, *rest)
            for at_s, worker, epoch, *rest in db.execute(
                "SELECT at_s, worker, epoch, message, first, last, machine, reason FROM failures ORDER BY at_s"
            )
        ],
        avoided=[
            FailingWorker(w["worker"], w["machine"] or "", w["failed"], w["avoided_because"] or "")
            for w in workers
            if w["failed"] >= AVOIDED
        ],
        altered_pushes=read_altered(db),
        quarantined=read_quarantined(db),
        avoided_machines=read_avoided_machines(db, clock.end_s),
        epochs=epochs,
    )


def measured_goodput(spent_s: float, worker_s: float) -> float | None:
    """Return the share of the workers' time that went into credited vertices, given the sum of `credited_s` of all of
    them; None before any was credited."""
    return spent_s / worker_s if spent_s > 0 and worker_s > 0 else None


def credited_s(credited: int, trained: int, train_s: float, life_s: float) -> float:
    """Return the seconds that a worker spent on what it was credited, at the speed that it says it trained at, but no
    more than it lived: what it says is no evidence."""
    return min(credited * train_s / trained, life_s) if trained else 0.0


def _killed(worker: Mapping[str, Any]) -> bool:
    """Return whether its machine was taken away from a worker; one that the master itself ended does not count."""
    return bool(worker["state"] == State.EVICTED and not worker["cancelled"])


def _life_s(worker: Mapping[str, Any], clock: RunClock) -> float:
    ended_s = clock.end_s if worker["ended_s"] is None else worker["ended_s"]
    return float(max(0.0, ended_s - worker["started_s"]))


def _machines(workers: Sequence[Mapping[str, Any]]) -> list[MachineReport]:
    names = dict.fromkeys(w["machine"] for w in workers if w["machine"])
    machines = []
    for name in sorted(names, key=_natural):
        own = [w for w in workers if w["machine"] == name]
        killed = [w for w in own if _killed(w)]
        graceful = sum(bool(w["graceful"]) for w in killed)
        machines.append(MachineReport(name, len(own), graceful, len(killed) - graceful))
    return machines


def _natural(name: str) -> tuple[str, int]:
    """Sorts slot-2 before slot-10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)


def _epochs(db: sqlite3.Connection, clock: RunClock) -> list[EpochReport]:
    rows = _dicts(db.execute("SELECT * FROM epochs ORDER BY epoch"))
    size = max((row["epoch"] for row in rows), default=-1) + 1
    lengths, unions = coverage(
        np.array(db.execute("SELECT epoch, start, stop FROM credits").fetchall(), np.int64).reshape(-1, 3), size
    )
    pushes = {
        e: (n, mean) for e, n, mean in db.execute("SELECT epoch, count(*), avg(staleness) FROM credits GROUP BY epoch")
    }
    wasted = dict(
        db.execute(
            "SELECT epoch, sum(max(0, trained - (upto - start))) FROM leases WHERE closed_s IS NOT NULL GROUP BY epoch"
        )
    )
    logged = read_by_epoch(db)
    epochs = []
    for row in rows:
        epoch, vertices, closed_s = row["epoch"], row["vertices"], row["closed_s"]
        missing = vertices - int(unions[epoch])
        number, staleness = pushes.get(epoch, (0, None))
        epochs.append(
            EpochReport(
                epoch=epoch + 1,
                vertices=vertices,
                credited=int(lengths[epoch]),
                duplicated=int(lengths[epoch] - unions[epoch]),
                lost=0 if closed_s is None else missing,
                left=missing if closed_s is None else 0,
                wasted=wasted.get(epoch, 0),
                pushes=number,
                staleness=staleness,
                opened_s=clock.at(row["opened_s"]),
                closed_s=None if closed_s is None else clock.at(closed_s),
                metrics=read_metrics(row["metrics"], row["metrics_crc32"]),
                logged=logged.get(epoch, {}),
            )
        )
    return epochs


def coverage(credits: Ints, epochs: int) -> tuple[Ints, Ints]:
    """Return (sum of the lengths, length of the union) of credited intervals, each int64 (epochs,).

    `credits` int64 (n, 3): epoch, start, stop. An interval adds to the union what lies beyond all that started before.
    """
    lengths, unions = np.zeros(epochs, np.int64), np.zeros(epochs, np.int64)
    if not len(credits):
        return lengths, unions
    epoch, start, stop = credits.T
    np.add.at(lengths, epoch, stop - start)
    # The epochs are laid one behind the other on one line, so that one running maximum serves them all.
    width = int(stop.max())
    order = np.lexsort((start, epoch))
    epoch, start, stop = epoch[order], start[order] + epoch[order] * width, stop[order] + epoch[order] * width
    covered = np.maximum.accumulate(np.concatenate([start[:1], stop[:-1]]))
    np.add.at(unions, epoch, np.maximum(0, stop - np.maximum(start, covered)))
    return lengths, unions


def _dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Return the rows, each by name of column."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
