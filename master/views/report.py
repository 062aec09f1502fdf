"""Report of a run: its work, its speed and its losses. Every figure is counted from the rows of the run's ledger.

A report can be made at any time, even while a master drives the run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from master.backends.registry import read_settings
from master.state.failures import AVOID_AFTER
from master.state.jobs import State
from master.store.reader import (
    EVALUATED_ON,
    ROUNDS,
    STOPPED_EARLY,
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
from master.views.money import read_money
from master.views.progress import measured_goodput, read_choices, read_worth
from master.views.render import as_text
from master.views.report_parts import (
    Choices,
    CreditSums,
    EpochReport,
    FailingWorker,
    FailureReport,
    Figures,
    LifeCounts,
    MachineReport,
    RunCosts,
    RunRequest,
    RunSpeed,
    Troubles,
    read_altered,
    read_avoided_machines,
    read_quarantined,
)

Ints = NDArray[np.int64]
KILLED = "(state = 'evicted' AND NOT coalesce(cancelled, 0))"  # by the loss of its machine, not by the master
_ENDS = f"""
SELECT machine, count(*), coalesce(sum({KILLED} AND coalesce(graceful, 0)), 0),
  coalesce(sum({KILLED} AND NOT coalesce(graceful, 0)), 0), coalesce(sum(state = ? AND coalesce(detail, '') != ?), 0)
FROM workers WHERE started_s NOTNULL
"""
_LIVES = """
SELECT credited, trained, train_s, max(0.0, coalesce(ended_s, ?) - started_s) FROM workers WHERE started_s NOTNULL
ORDER BY submitted_s, worker
"""
_SUMS = """
SELECT count(*), (SELECT count(*) FROM events WHERE topic = 'spot check'), (SELECT count(*) FROM versions),
  avg(staleness) FROM credits
"""
_BYTES = """
SELECT coalesce(sum(bytes_up), 0), coalesce(sum(bytes_down), 0) FROM workers WHERE started_s NOTNULL
"""
_LAST_SIZING = "SELECT text FROM events WHERE topic = 'sizing' ORDER BY rowid DESC LIMIT 1"
_FAILURES = "SELECT at_s, worker, epoch, message, first, last, machine, reason FROM failures ORDER BY at_s"
_FAILING = """
SELECT worker, coalesce(machine, ''), failed, coalesce(avoided_because, '') FROM workers
WHERE started_s NOTNULL AND failed >= ? ORDER BY submitted_s, worker
"""
_EPOCHS = """
SELECT epoch, vertices, closed_s NOTNULL, coalesce(wasted, 0), coalesce(pushes, 0), staleness, opened_s, closed_s,
  metrics, metrics_crc32
FROM epochs LEFT JOIN (SELECT epoch, count(*) AS pushes, avg(staleness) AS staleness FROM credits GROUP BY epoch)
USING (epoch) LEFT JOIN (SELECT epoch, sum(max(0, trained - (upto - start))) AS wasted FROM leases
  WHERE closed_s NOTNULL GROUP BY epoch) USING (epoch)
ORDER BY epoch
"""


class Report(Figures):
    """The figures of a run. `str` gives the text that `gridml report` prints."""

    def __str__(self) -> str:
        return as_text(self)


def report(root: Path, now: float | None = None) -> Report:
    """Return the report of a run. `now` is the time of the report, if the run is still in progress.

    Raises LedgerError if the directory holds no run or its ledger cannot be read.
    """
    with opened(root) as db:
        facts, clock = read_facts(db), read_clock(db, root, now)
        epochs = _epochs(db, clock)
        credit = _credit(db, epochs)
        speed = _speed(db, facts, clock, credit.credited)
        flop = None if speed.flops_per_vertex is None else speed.flops_per_vertex * credit.credited
        parts = (
            _asked(root, read_settings(root, facts.get("settings")), facts, read_status(db, root), epochs),
            _lives(db, facts),
            speed,
            credit,
            _choices(db, facts),
            RunCosts(read_money(root, flop, now)),
            _troubles(db, clock),
        )
        return Report(**{name: value for part in parts for name, value in vars(part).items()}, epochs=epochs)


def _asked(
    root: Path, settings: Settings, facts: Mapping[str, Any], status: RunStatus, epochs: Sequence[EpochReport]
) -> RunRequest:
    total, vertices = facts.get("total"), epochs[0].vertices if epochs else 0
    return RunRequest(
        run_dir=str(root),
        status=status,
        stopped_because=facts.get("stopped_because") if status in (RunStatus.FAILED, RunStatus.CANCELLED) else None,
        program=settings.program.name,
        backend=settings.backend,
        vertices=vertices,
        epochs_wanted=total // vertices if total and vertices else None,
        workers=settings.workers,
    )


def _lives(db: sqlite3.Connection, facts: Mapping[str, Any]) -> LifeCounts:
    _, lives, sigterm, sigkill, crashed = db.execute(_ENDS, (State.LOST, ORPHANED)).fetchone()
    return LifeCounts(lives, sigterm + sigkill, sigterm, sigkill, crashed, facts.get("masters", 0))


def _speed(db: sqlite3.Connection, facts: Mapping[str, Any], clock: RunClock, credited: int) -> RunSpeed:
    wall_s, flops_per_vertex = max(0.0, clock.at(clock.end_s)), facts.get("flops_per_vertex")
    lives = db.execute(_LIVES, (clock.end_s,)).fetchall()
    worker_s = sum(life_s for *_, life_s in lives)
    spent_s = sum(credited_s(*life) for life in lives)
    return RunSpeed(
        wall_s=wall_s,
        worker_s=worker_s,
        goodput=measured_goodput(spent_s, worker_s),
        flops=flops_per_vertex * credited / wall_s if flops_per_vertex and wall_s else None,
        flops_per_vertex=flops_per_vertex,
        vertices_per_s=credited / wall_s if wall_s else None,
        **read_worth(facts, spent_s, clock),
    )


def credited_s(credited: int, trained: int, train_s: float, life_s: float) -> float:
    """Return the seconds that a worker spent on its credited vertices, at the speed that it reported. The result is at
    most the worker's life `life_s`, because the reported speed can be false."""
    return min(credited * train_s / trained, life_s) if trained else 0.0


def _credit(db: sqlite3.Connection, epochs: Sequence[EpochReport]) -> CreditSums:
    counts = "credited", "duplicated", "lost", "wasted"
    return CreditSums(
        *(sum(getattr(epoch, count) for epoch in epochs) for count in counts),
        *db.execute(_SUMS).fetchone(),
        *db.execute(_BYTES).fetchone(),
    )


def _choices(db: sqlite3.Connection, facts: Mapping[str, Any]) -> Choices:
    sizing = next((text for (text,) in db.execute(_LAST_SIZING)), None)
    return Choices(
        **read_choices(facts),
        stopped_early=facts.get(STOPPED_EARLY),
        best=read_best_fact(facts),
        rounds=_rounds(facts.get(ROUNDS)),
        evaluated_on=facts.get(EVALUATED_ON),
        sizing=sizing,
    )


def _rounds(kept: Mapping[str, Any] | None) -> dict[str, int] | None:
    return None if kept is None else {"ended": kept["number"], "late_pushes": kept["late"]}


def _troubles(db: sqlite3.Connection, clock: RunClock) -> Troubles:
    machines = db.execute(
        f"{_ENDS} AND machine != '' GROUP BY machine ORDER BY min(submitted_s)", (State.LOST, ORPHANED)
    )
    return Troubles(
        machines=sorted((MachineReport(*row[:4]) for row in machines), key=lambda each: _natural(each.machine)),
        failures=[
            FailureReport(clock.at(at_s), worker, epoch + 1, *rest)
            for at_s, worker, epoch, *rest in db.execute(_FAILURES)
        ],
        avoided=[FailingWorker(*row) for row in db.execute(_FAILING, (AVOID_AFTER,))],
        altered_pushes=read_altered(db),
        quarantined=read_quarantined(db),
        avoided_machines=read_avoided_machines(db, clock.end_s),
    )


def _natural(name: str) -> tuple[str, int]:
    """Return a sort key that puts slot-2 before slot-10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)


def _epochs(db: sqlite3.Connection, clock: RunClock) -> list[EpochReport]:
    rows = db.execute(_EPOCHS).fetchall()
    credits = np.array(db.execute("SELECT epoch, start, stop FROM credits").fetchall(), np.int64).reshape(-1, 3)
    lengths, unions = coverage(credits, rows[-1][0] + 1 if rows else 0)
    logged = read_by_epoch(db)
    return [
        EpochReport(
            epoch=epoch + 1,
            vertices=vertices,
            credited=int(lengths[epoch]),
            duplicated=int(lengths[epoch] - unions[epoch]),
            lost=vertices - int(unions[epoch]) if closed else 0,
            left=0 if closed else vertices - int(unions[epoch]),
            wasted=wasted,
            pushes=pushes,
            staleness=staleness,
            opened_s=clock.at(opened_s),
            closed_s=clock.at(closed_s) if closed else None,
            metrics=read_metrics(*metrics),
            logged=logged.get(epoch, {}),
        )
        for epoch, vertices, closed, wasted, pushes, staleness, opened_s, closed_s, *metrics in rows
    ]


def coverage(credits: Ints, epochs: int) -> tuple[Ints, Ints]:
    """Return (sum of the lengths, length of the union) of credited intervals, each int64 (epochs,).

    `credits` int64 (n, 3): epoch, start, stop. Intervals are taken in the order of their starts. Each interval
    adds to the union only its part beyond the largest stop so far.
    """
    lengths, unions = np.zeros(epochs, np.int64), np.zeros(epochs, np.int64)
    if not len(credits):
        return lengths, unions
    epoch, start, stop = credits.T
    np.add.at(lengths, epoch, stop - start)
    # Each epoch is shifted by a multiple of `width`, so that one running maximum over all of them suffices.
    width = int(stop.max())
    order = np.lexsort((start, epoch))
    epoch, start, stop = epoch[order], start[order] + epoch[order] * width, stop[order] + epoch[order] * width
    covered = np.maximum.accumulate(np.concatenate([start[:1], stop[:-1]]))
    np.add.at(unions, epoch, np.maximum(0, stop - np.maximum(start, covered)))
    return lengths, unions
