"""How far a run has come, at a glance. What is read stays small however long the run: epochs, workers and the newest
rows."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field, replace
from typing import Any

from master.store.reader import STOPPED
from master.views.report import goodput

PUSHES = 50  # that the mean staleness looks back on
WINDOW_S = 30.0  # that the speed looks back on
VERSIONS = 1000  # that it looks at, at most
AT_LEAST = 8  # versions it looks back on where pushes are rare


@dataclass(frozen=True)
class Progress:
    """`credited` of `vertices` of `epoch` (from 1), the oldest that is open, and `all_credited` of `total` of the run.

    `alive` workers run, `queued` wait for a machine, `lost` were taken away or crashed. `staleness` is the mean of the
    last pushes, `per_second` vertices credited lately; `metrics` are those of epoch `judged`. None: not known yet.
    """

    status: str
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
    judged: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


def read(connection: sqlite3.Connection, now: float) -> Progress:
    """The progress as the ledger has it, `now` in seconds of the clock it was written by."""
    one = connection.execute
    told = {key: json.loads(value) for key, value in one("SELECT key, value FROM run")}
    epoch, vertices, credited = one(
        "SELECT epoch, vertices, credited FROM epochs ORDER BY closed_s IS NOT NULL, "
        "CASE WHEN closed_s IS NULL THEN epoch ELSE -epoch END LIMIT 1"
    ).fetchone() or (0, 0, 0)
    all_credited = one("SELECT coalesce(sum(credited), 0) FROM epochs").fetchone()[0]
    judged = one("SELECT epoch, metrics FROM epochs WHERE metrics IS NOT NULL ORDER BY epoch DESC LIMIT 1").fetchone()
    # A worker that its back end never started is neither alive nor lost.
    states = {
        (s, begun): n for s, begun, n in one("SELECT state, started_s IS NOT NULL, count(*) FROM workers GROUP BY 1, 2")
    }
    trained, train_s, worker_s = one(
        "SELECT coalesce(sum(trained), 0), coalesce(sum(train_s), 0.0), "
        "coalesce(sum(coalesce(ended_s, ?) - started_s), 0.0) FROM workers WHERE started_s IS NOT NULL",
        (now,),
    ).fetchone()
    staleness = one(
        "SELECT avg(staleness) FROM (SELECT staleness FROM credits ORDER BY rowid DESC LIMIT ?)", (PUSHES,)
    ).fetchone()[0]
    total = told.get("total")
    per_second = _speed(connection, max((to for _, to in told.get("gaps", [])), default=0.0), now)
    return Progress(
        status=told.get("status", "running"),
        epoch=epoch + 1,
        epochs=total // vertices if total and vertices else None,
        credited=credited,
        vertices=vertices,
        all_credited=all_credited,
        total=total,
        alive=states.get(("running", 1), 0) + states.get(("out of reach", 1), 0),
        queued=states.get(("queued", 0), 0),
        lost=states.get(("evicted", 1), 0) + states.get(("lost", 1), 0),
        staleness=staleness,
        per_second=per_second,
        goodput=goodput(all_credited, trained, train_s, worker_s),
        seconds_left=(total - all_credited) / per_second if total and per_second else None,
        judged=None if judged is None else judged[0] + 1,
        metrics={} if judged is None else json.loads(judged[1]),
    )


def at_rest(progress: Progress) -> Progress:
    """The progress of a run that no master drives: nobody works, whatever the ledger says."""
    status = STOPPED if progress.status == "running" else progress.status
    return replace(progress, status=status, alive=0, queued=0, per_second=None, seconds_left=None)


def _speed(connection: sqlite3.Connection, since: float, now: float) -> float | None:
    """Vertices credited per second lately, None before there are two versions to compare; it falls while none come.

    Versions before `since`, when the master began, do not count: nothing came while none ran.
    """
    newest = connection.execute(
        "SELECT credited, at_s FROM versions ORDER BY version DESC LIMIT ?", (VERSIONS,)
    ).fetchall()
    newest = [(credited, at_s) for credited, at_s in newest if at_s >= since]
    recent: list[tuple[int, float]] = [row for i, row in enumerate(newest) if i < AT_LEAST or now - row[1] <= WINDOW_S]
    if len(recent) < 2 or now <= recent[-1][1]:
        return None
    return (recent[0][0] - recent[-1][0]) / (now - recent[-1][1])
