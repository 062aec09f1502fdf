"""Taking a run back to a version that is kept: what was credited after it is free again.

The replica of that version becomes a new one, with a number of its own, in which every vertex has changed. So no number
is given twice: a push that stands on what was undone names a version that is not kept, and is refused; every worker is
sent the whole replica. All leases end, and a push under one of them is refused as well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from gridml.errors import UsageError
from master.decisions.leasing import Span
from master.store.sealed import read_fact


@dataclass(frozen=True)
class Point:
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


def points(db: sqlite3.Connection) -> list[Point]:
    """Return the versions that a run can go back to, newest first."""
    credited = db.execute("SELECT coalesce(sum(credited), 0) FROM epochs").fetchone()[0]
    rows = db.execute(
        "SELECT versions.version, versions.credited, ? - versions.credited, at_s, epoch FROM versions LEFT JOIN epochs "
        "ON epochs.version = versions.version WHERE kept ORDER BY versions.version DESC",
        (credited,),
    )
    return [Point(*row) for row in rows]


def find_point(wanted: str, among: Sequence[Point], option: str = "--to", others: Sequence[str] = ()) -> Point:
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


def uncredited(db: sqlite3.Connection) -> list[Span]:
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
