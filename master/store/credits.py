"""The credits of a ledger: whether they are exact, and how they are taken back.

They are counted from the rows: any sum in the ledger may be wrong, and is compared. `master.simulation.result`
verifies more, and independently of this, for tests.

A run is taken back to a version that is kept: what was credited after it is free again. The replica of that version
becomes a new one, with a number of its own, in which every vertex has changed. So no number is given twice: a push
that stands on what was undone names a version that is not kept, and is refused; every worker is sent the whole
replica. All leases end, and a push under one of them is refused as well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from master.state.spans import Span
from master.store.schema import read_fact

Ints = NDArray[np.int64]

_UNCREDITED = (
    "SELECT epoch, start, stop FROM spans "
    "UNION ALL SELECT epoch, upto, stop FROM leases WHERE closed_s IS NULL AND upto < stop"
)
_VERSIONS = """
WITH sums AS (SELECT version, sum(stop - start) AS vertices FROM credits GROUP BY version),
totals AS (SELECT version, credited, sum(coalesce(vertices, 0)) OVER (ORDER BY version) AS total
  FROM versions LEFT JOIN sums USING (version))
SELECT version, credited, total FROM totals WHERE credited != total LIMIT 1
"""


@dataclass(frozen=True)
class Credited:
    """Vertices credited in all, epochs that were opened, and those of them that are credited in full."""

    vertices: int
    epochs: int
    full: int


def count_credits(db: sqlite3.Connection) -> Credited:
    """Count what is credited, row by row: about a million rows in two seconds.

    Raises ValueError, naming epoch and range, where credited, free and leased ranges are not a partition of an epoch,
    or a sum that the ledger keeps is not that of its rows.
    """
    epochs = _rows(
        db, "SELECT epoch, vertices, credited, closed_s NOTNULL AND version NOTNULL FROM epochs ORDER BY epoch", 4
    )
    credits, uncredited = _rows(db, "SELECT epoch, start, stop FROM credits", 3), _rows(db, _UNCREDITED, 3)
    number, vertices, claimed, closed = epochs.T
    if not len(epochs) or not np.array_equal(number, np.arange(len(epochs))):
        raise ValueError(f"the epochs {number.tolist()} are there; expected all from 0 on")
    _check_partition(np.concatenate([credits, uncredited]), vertices)
    sums = np.zeros(len(epochs), np.int64)
    np.add.at(sums, credits[:, 0], credits[:, 2] - credits[:, 1])
    if not np.array_equal(sums, claimed):
        raise ValueError(f"the epochs say that {claimed.tolist()} vertices are credited; the rows make {sums.tolist()}")
    if not np.array_equal(closed != 0, sums == vertices):
        raise ValueError(f"{sums.tolist()} of {vertices.tolist()} vertices are credited; closed are {closed.tolist()}")
    for version, credited, total in db.execute(_VERSIONS):
        raise ValueError(f"version {version} says that {credited} vertices are credited; the rows make {total}")
    return Credited(int(sums.sum()), len(epochs), int((sums == vertices).sum()))


def check_patches(db: sqlite3.Connection) -> None:
    """Raise ValueError where there are patches, or a base of fields, and not a patch for every version since."""
    base = read_fact(db, "base")
    patches = db.execute("SELECT version, epoch FROM patches ORDER BY version").fetchall()
    if base is None and not patches:
        return
    expected = db.execute(
        "SELECT version, min(epoch) FROM credits WHERE version > ? GROUP BY version ORDER BY version",
        (-1 if base is None else base["version"],),
    ).fetchall()
    if patches != expected:
        raise ValueError(f"its patches are of the (version, epoch) {patches}; by its credits they should be {expected}")


def _rows(db: sqlite3.Connection, query: str, columns: int) -> Ints:
    try:
        return np.array(db.execute(query).fetchall(), np.int64).reshape(-1, columns)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"what should be a number is none: {error}") from error


def _check_partition(parts: Ints, vertices: Ints) -> None:
    """Raise ValueError where `parts` int64 (n, 3) of epoch, start and stop are no partition of [0, vertices[epoch])."""
    epoch, start, stop = parts.T
    wrong = (epoch < 0) | (epoch >= len(vertices)) | (start < 0) | (start >= stop)
    if wrong.any():
        raise ValueError(f"epoch, start and stop of a range are {parts[wrong][0].tolist()}")
    # The epochs are laid one behind the other on one line: what ends there must be where the next begins.
    begins = np.concatenate([[0], np.cumsum(vertices)])
    order = np.argsort(begins[epoch] + start, kind="stable")
    expected = np.concatenate([[0], (begins[epoch] + stop)[order]])
    starts = np.concatenate([(begins[epoch] + start)[order], begins[-1:]])
    for at in np.flatnonzero(starts != expected)[:1]:
        low, high = sorted((int(starts[at]), int(expected[at])))
        of = max(0, int(np.searchsorted(begins, low, "right")) - 1)
        what = "twice" if starts[at] < expected[at] else "not at all"
        raise ValueError(
            f"epoch {of + 1}: [{low - begins[of]}, {high - begins[of]}) is credited, free or leased {what}"
        )


@dataclass(frozen=True)
class RollbackPoint:
    """A version to go back to, and the vertices of the run that are credited in it. `epoch` is the one that it ends, if
    any; `undoes` are the vertices that were credited since."""

    version: int
    credited: int
    undoes: int
    at_s: float
    epoch: int | None = None


@dataclass(frozen=True)
class Undone:
    """What going back to `version` undid: so many vertices, credited to `workers`."""

    version: int
    vertices: int
    workers: tuple[str, ...]


def rollback_points(db: sqlite3.Connection) -> list[RollbackPoint]:
    """Return the versions that a run can go back to, newest first."""
    credited = db.execute("SELECT coalesce(sum(credited), 0) FROM epochs").fetchone()[0]
    rows = db.execute(
        "SELECT versions.version, versions.credited, ? - versions.credited, at_s, epoch FROM versions LEFT JOIN epochs "
        "ON epochs.version = versions.version WHERE kept ORDER BY versions.version DESC",
        (credited,),
    )
    return [RollbackPoint(*row) for row in rows]


def find_point(
    wanted: str, among: Sequence[RollbackPoint], option: str = "--to", others: Sequence[str] = ()
) -> RollbackPoint:
    """Return the point called "v57", or "e3" for the end of the third epoch, as an `option` says. Raises UsageError for
    another, which says that `others` would do, too."""
    letter, number = wanted[:1], wanted[1:]
    named = {f"v{point.version}": point for point in reversed(among)}
    named |= {f"e{point.epoch + 1}": point for point in among if point.epoch is not None}
    point = named.get(wanted) if letter in ("v", "e") and number.isdecimal() else named.get(f"v{wanted}")
    if point is None:
        numbered = sorted(named, key=lambda name: int(name[1:]))
        ends = " ".join(name for name in numbered if name[0] == "e") or "none"
        versions = " ".join(name for name in numbered if name[0] == "v")
        too = "".join(f"{other}, " for other in others)
        raise UsageError(
            f"{option} is {wanted!r}; expected {too}the end of an epoch ({ends}) or a version ({versions})."
        )
    return point


def undo_credits(db: sqlite3.Connection, version: int, at_s: float, because: str) -> Undone:
    """Undo what was credited after a version: must be called inside a transaction, after what it has batched."""
    undone = db.execute("SELECT worker, sum(stop - start) FROM credits WHERE version > ? GROUP BY worker", (version,))
    by_worker = dict(undone.fetchall())
    db.execute("DELETE FROM credits WHERE version > ?", (version,))
    db.execute("DELETE FROM logged WHERE version > ?", (version,))
    rows = [(count, worker) for worker, count in by_worker.items()]
    db.executemany("UPDATE workers SET credited = credited - ? WHERE worker = ?", rows)
    db.execute(
        "UPDATE leases SET closed_s = coalesce(closed_s, ?), closed_because = coalesce(closed_because, ?), "
        "reserved_until_s = NULL WHERE closed_s IS NULL OR reserved_until_s IS NOT NULL",
        (at_s, because),
    )
    db.execute(
        "UPDATE epochs SET credited = (SELECT coalesce(sum(stop - start), 0) FROM credits WHERE credits.epoch = "
        "epochs.epoch)"
    )
    db.execute(
        "UPDATE epochs SET closed_s = NULL, version = NULL, metrics = NULL, metrics_crc32 = NULL WHERE version > ?",
        (version,),
    )
    db.execute(
        "DELETE FROM epochs WHERE credited = 0 AND epoch > (SELECT min(epoch) FROM epochs WHERE credited < vertices)"
    )
    best = read_fact(db, "best")
    if best is not None and best["version"] > version:
        db.execute("DELETE FROM run WHERE key = 'best'")
    db.execute("DELETE FROM versions WHERE version > ?", (version,))
    db.execute("DELETE FROM patches WHERE version > ?", (version,))
    db.execute("DELETE FROM spans")
    return Undone(version, sum(by_worker.values()), tuple(sorted(by_worker)))


def uncredited_spans(db: sqlite3.Connection) -> list[Span]:
    """Return what no credit covers of the epochs that are open."""
    spans = []
    for epoch, vertices in db.execute("SELECT epoch, vertices FROM epochs WHERE closed_s IS NULL").fetchall():
        at = 0
        rows = db.execute("SELECT start, stop FROM credits WHERE epoch = ? ORDER BY start", (epoch,))
        for start, stop in [*rows, (vertices, vertices)]:
            if start > at:
                spans.append(Span(epoch, at, start))
            at = max(at, stop)
    return spans
