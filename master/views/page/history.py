"""History of a run for charts: columns read from its ledger, each of about `POINTS` points, however long the run is."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from master.state.jobs import State
from master.store.reader import RunClock, read_ahead
from master.store.schema import read_series
from master.views.money import read_spent

POINTS = 400
_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
BANDS = 120  # points of a chart that shows a mean between a minimum and a maximum
COSTS = 60  # points of the cost chart; fewer, because each one sums over all instances
REASONS = 20  # maximum number of listed reasons for chunk sizes; the most frequent are kept
Columns = dict[str, list[float]]
Times = NDArray[np.float64]
_CREDITS = """
SELECT max(at_s), sum(stop - start) FROM credits GROUP BY cast((at_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_STALENESS = """
SELECT max(at_s), min(staleness), avg(staleness), max(staleness)
FROM credits GROUP BY cast((at_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_BYTES = """
SELECT max(at_s), sum(bytes_up), sum(bytes_down) FROM traffic GROUP BY cast((at_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_CHUNKS = """
SELECT max(opened_s), min(stop - start), avg(stop - start), max(stop - start)
FROM leases WHERE stop > start GROUP BY cast((opened_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_REASONS = """
SELECT reason, count(*), min(stop - start), max(stop - start) FROM leases WHERE stop > start GROUP BY reason
"""
_PUSH_REASONS = """
SELECT push_reason, count(*), min(push_every), max(push_every)
FROM workers WHERE push_every NOTNULL AND push_reason NOTNULL GROUP BY push_reason
"""


@dataclass(frozen=True)
class SizeReason:
    """A reason for chunk sizes or push intervals, and how often it was given."""

    reason: str
    number: int  #: number of chunks or workers that it applies to
    least: int  #: smallest size or interval, in vertices
    most: int  #: largest size or interval, in vertices


@dataclass(frozen=True)
class History:
    """Charts as columns by name; the columns of a chart have equal length. `at_s` is in seconds of the run, which
    leave out periods without a master."""

    credit: Columns  #: vertices credited so far, over all epochs
    staleness: Columns  #: least, mean and most over the pushes since the previous point
    workers: Columns  #: alive now, and lost so far
    bytes: Columns  #: up and down so far
    chunks: Columns  #: least, mean and most vertices of the chunks since the previous point
    cost: Columns  #: dollars so far, as known at that time; empty if the run launched no instances
    logged: dict[str, Columns]  #: by name: `mean` of what f logged up to `credited` vertices
    chunk_reasons: list[SizeReason]
    push_reasons: list[SizeReason]


def read_history(db: sqlite3.Connection, root: Path, clock: RunClock, points: int = POINTS) -> History:
    """Return the history of the run in `root` up to `clock.end_s`."""
    width_s = max((clock.end_s - clock.start_s) / points, 1e-3)
    buckets = (clock.start_s, width_s)
    wider = (clock.start_s, width_s * max(1.0, points / BANDS))
    pushes = db.execute(_CREDITS, buckets).fetchall()
    passed = db.execute(_BYTES, buckets).fetchall()
    return History(
        credit=_columns(clock, pushes, {"credited": _running([row[1] for row in pushes])}),
        staleness=_extents(clock, db.execute(_STALENESS, wider).fetchall()),
        workers=_workers(db, clock, points),
        bytes=_columns(
            clock, passed, {"up": _running([row[1] for row in passed]), "down": _running([row[2] for row in passed])}
        ),
        chunks=_extents(clock, db.execute(_CHUNKS, wider).fetchall()),
        cost=_cost(root, clock, read_ahead(db)),
        logged=_logged(db, points),
        chunk_reasons=gather_reasons(SizeReason(*row) for row in db.execute(_REASONS)),
        push_reasons=gather_reasons(SizeReason(*row) for row in db.execute(_PUSH_REASONS)),
    )


def gather_reasons(reasons: Iterable[SizeReason]) -> list[SizeReason]:
    """Merge reasons that differ only in numbers, which become "…". Return the most frequent reasons first."""
    gathered: dict[str, SizeReason] = {}
    for one in reasons:
        words = _NUMBER.sub("…", one.reason)
        if (other := gathered.get(words)) is not None:
            least, most = min(one.least, other.least), max(one.most, other.most)
            one = SizeReason(words, one.number + other.number, least, most)
        gathered[words] = one
    return sorted(gathered.values(), key=lambda one: (-one.number, one.reason))[:REASONS]


def _columns(clock: RunClock, rows: list[Any], others: Columns) -> Columns:
    return {"at_s": [round(clock.at(row[0]), 3) for row in rows], **others}


def _extents(clock: RunClock, rows: list[Any]) -> Columns:
    names = ("least", "mean", "most")
    return _columns(clock, rows, {name: [row[i] for row in rows] for i, name in enumerate(names, 1)})


def _running(values: list[float]) -> list[float]:
    return [float(value) for value in np.cumsum(values)]


def _workers(db: sqlite3.Connection, clock: RunClock, points: int) -> Columns:
    """Return the numbers of live and lost workers at each change, or at equal steps if there are more than twice
    `points` changes."""
    rows = db.execute(
        "SELECT started_s, ended_s, state IN (?, ?) AND NOT (coalesce(cancelled, 0) AND coalesce(graceful, 0)) "
        "FROM workers WHERE started_s NOTNULL",
        (State.EVICTED, State.LOST),
    ).fetchall()
    begun = np.sort([row[0] for row in rows])
    ended = np.sort([row[1] for row in rows if row[1] is not None])
    lost = np.sort([row[1] for row in rows if row[1] is not None and row[2]])
    at_s = np.unique([clock.start_s, *begun, *ended, clock.end_s])
    if len(at_s) > 2 * points:
        at_s = np.linspace(clock.start_s, clock.end_s, points)
    return {
        "at_s": [round(clock.at(float(t)), 3) for t in at_s],
        "alive": _counts(begun, at_s, -_up_to(ended, at_s)),
        "lost": _counts(lost, at_s),
    }


def _up_to(times: Times, at_s: Times) -> Times:
    return np.searchsorted(times, at_s, side="right").astype(np.float64)


def _counts(times: Times, at_s: Times, added: Times | float = 0.0) -> list[float]:
    """Return the number of `times` up to each of `at_s`, plus `added`."""
    return [float(count) for count in _up_to(times, at_s) + added]


def _cost(root: Path, clock: RunClock, ahead_s: float) -> Columns:
    at_s = [float(t) for t in np.linspace(clock.start_s, clock.end_s, COSTS)]
    spent = read_spent(root, [t - ahead_s for t in at_s])
    return {"at_s": [round(clock.at(t), 3) for t in at_s] if spent else [], "dollars": spent}


def _logged(db: sqlite3.Connection, points: int) -> dict[str, Columns]:
    logged: dict[str, Columns] = {}
    for mean in read_series(db, points):
        columns = logged.setdefault(mean.name, {"credited": [], "mean": []})
        columns["credited"].append(float(mean.credited))
        columns["mean"].append(mean.mean)
    return logged
