"""What f logged, read from a run's ledger: sums over credited vertices, each of them once, summed in SQL.

A row of the table `logged` holds what the pushes of one version logged under one name of one epoch.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from master.store.sealed import unseal

LATELY = 256  # rows that the newest means look back on, at most
_BY_EPOCH = "SELECT epoch, name, sum(total), sum(vertices) FROM logged GROUP BY epoch, name ORDER BY epoch, min(rowid)"
_LATELY = """
SELECT name, sum(total), sum(vertices) FROM (SELECT name, total, vertices FROM logged ORDER BY rowid DESC LIMIT ?)
GROUP BY name ORDER BY name
"""
# Versions and rows come in one order, so both ends are found from the newest on, however many there are.
_SINCE = """
SELECT max(versions.credited), max(epoch), logged.name, sum(total), sum(vertices)
FROM logged JOIN versions USING (version) WHERE logged.rowid > coalesce((SELECT rowid FROM logged WHERE version <= (
  SELECT version FROM versions WHERE credited <= ? ORDER BY version DESC LIMIT 1) ORDER BY rowid DESC LIMIT 1), 0)
GROUP BY logged.name ORDER BY logged.name
"""
_EVALUATED = """
SELECT versions.credited, epoch, closed_s, metrics, metrics_crc32 FROM epochs JOIN versions USING (version)
WHERE metrics IS NOT NULL AND versions.credited > ? ORDER BY epoch
"""
_SERIES = """
SELECT max(versions.credited), max(epoch), logged.name, sum(total), sum(vertices)
FROM logged JOIN versions USING (version)
GROUP BY (versions.credited - 1) / ?, logged.name ORDER BY max(versions.credited), logged.name
"""


@dataclass(frozen=True)
class LoggedMean:
    """The mean of what f logged under `name`, over `vertices` credited vertices, up to where `credited` vertices of the
    run were. `epoch` counts from 0."""

    credited: int
    epoch: int
    name: str
    mean: float
    vertices: int


def read_by_epoch(db: sqlite3.Connection) -> dict[int, dict[str, float]]:
    """Return the means by epoch (from 0) and name, in the order in which the names came."""
    means: dict[int, dict[str, float]] = {}
    for epoch, name, total, vertices in db.execute(_BY_EPOCH):
        means.setdefault(epoch, {})[name] = total / vertices
    return means


def read_lately(db: sqlite3.Connection) -> dict[str, float]:
    """Return the means over the newest versions, by name: however long a run is, few rows are read."""
    return {name: total / vertices for name, total, vertices in db.execute(_LATELY, (LATELY,))}


def read_since(db: sqlite3.Connection, credited: int) -> list[LoggedMean]:
    """Return the means over all that was credited beyond the first `credited` vertices of the run, one for a name."""
    return [_mean(*row) for row in db.execute(_SINCE, (credited,))]


def read_evaluated_since(db: sqlite3.Connection, credited: int) -> list[tuple[int, int, float, dict[str, Any]]]:
    """Return (vertices credited, epoch from 0, when it ended, metrics) of the evaluations of versions in which more
    than `credited` vertices of the run are, in the order of the epochs; each beyond the one before."""
    evaluations = []
    for step, epoch, at_s, *sealed in db.execute(_EVALUATED, (credited,)):
        if step > credited:  # two epochs may end with one version
            evaluations.append((step, epoch, at_s, unseal(*sealed)))
            credited = step
    return evaluations


def read_series(db: sqlite3.Connection, points: int) -> list[LoggedMean]:
    """Return the means over equal parts of what is credited, about `points` of them for each name, oldest first."""
    credited = db.execute("SELECT coalesce(max(credited), 0) FROM versions").fetchone()[0]
    return [_mean(*row) for row in db.execute(_SERIES, (max(1, -(-credited // max(1, points))),))]


def _mean(credited: int, epoch: int, name: str, total: float, vertices: int) -> LoggedMean:
    return LoggedMean(credited, epoch, name, total / vertices, vertices)
