"""The credits of a ledger: verified from its rows, and undone by a rollback.

For tests, `master.simulation.result` verifies a ledger independently of this module, and checks more.

A rollback returns to a saved version and frees the ranges credited after it. The replica of that version gets a new
version number, and every vertex in it counts as changed. So no version number is used twice, and every worker is sent
the whole replica. A push based on an undone version is rejected, because an undone version is no longer saved. All
leases end, so a push under one of them is rejected too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from master.state.spans import Span
from master.store.schema import ENOUGH, read_fact
from master.store.tick_rows import undo_ticks

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
    """Totals of the credits in a ledger."""

    vertices: int  # credited, over all epochs
    epochs: int  # epochs opened
    full: int  # epochs in which every vertex is credited


def count_credits(db: sqlite3.Connection) -> Credited:
    """Count credits row by row, about a million rows in two seconds.

    Raises ValueError if the credited, free and leased ranges do not partition an epoch (the message names epoch and
    range), or if a sum stored in the ledger differs from the sum of its rows.
    """
    epochs = _rows(
        db, "SELECT epoch, vertices, credited, closed_s NOTNULL AND version NOTNULL FROM epochs ORDER BY epoch", 4
    )
    credits, uncredited = _rows(db, "SELECT epoch, start, stop FROM credits", 3), _rows(db, _UNCREDITED, 3)
    number, vertices, claimed, closed = epochs.T
    # Stored sums are never trusted: each is compared with its rows, because damage may have changed either.
    if not len(epochs) or not np.array_equal(number, np.arange(len(epochs))):
        raise ValueError(f"the ledger has the epochs {number.tolist()}; expected all from 0 on")
    _check_partition(np.concatenate([credits, uncredited]), vertices)
    sums = np.zeros(len(epochs), np.int64)
    np.add.at(sums, credits[:, 0], credits[:, 2] - credits[:, 1])
    if not np.array_equal(sums, claimed):
        raise ValueError(f"the epochs claim {claimed.tolist()} credited vertices; their rows sum to {sums.tolist()}")
    # Epochs close in order, so an epoch that is credited in full stays open until all earlier epochs are credited in
    # full. Earlier releases could close such an epoch sooner; their ledgers are accepted.
    complete = sums == vertices
    if np.any((closed != 0) & ~complete) or np.any((closed == 0) & np.logical_and.accumulate(complete)):
        raise ValueError(f"{sums.tolist()} of {vertices.tolist()} vertices are credited; closed are {closed.tolist()}")
    for version, credited, total in db.execute(_VERSIONS):
        raise ValueError(f"version {version} claims {credited} credited vertices; its rows sum to {total}")
    return Credited(int(sums.sum()), len(epochs), int((sums == vertices).sum()))


def check_patches(db: sqlite3.Connection) -> None:
    """Raise ValueError if a patch of local fields is missing or superfluous.

    The base holds all fields as of one version. A patch holds the fields that one later version changed. Each version
    after the base that has credits must have a patch. A run without base and patches changes no local fields.
    """
    base = read_fact(db, "base")
    patches = db.execute("SELECT version, epoch FROM patches ORDER BY version").fetchall()
    if base is None and not patches:
        return
    expected = db.execute(
        "SELECT version, min(epoch) FROM credits WHERE version > ? GROUP BY version ORDER BY version",
        (-1 if base is None else base["version"],),
    ).fetchall()
    if patches != expected:
        raise ValueError(f"its patches have (version, epoch) {patches}; its credits imply {expected}")


def _rows(db: sqlite3.Connection, query: str, columns: int) -> Ints:
    try:
        return np.array(db.execute(query).fetchall(), np.int64).reshape(-1, columns)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a cell that should hold a number does not: {error}") from error


def _check_partition(parts: Ints, vertices: Ints) -> None:
    """Raise ValueError unless `parts`, int64 (n, 3) of epoch, start and stop, partition every [0, vertices[epoch])."""
    epoch, start, stop = parts.T
    wrong = (epoch < 0) | (epoch >= len(vertices)) | (start < 0) | (start >= stop)
    if wrong.any():
        raise ValueError(f"epoch, start and stop of a range are {parts[wrong][0].tolist()}")
    # All epochs are laid end to end on one line. Sorted by start, the ranges partition it if and only if each begins
    # where the previous one ends.
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
    """A saved version that a rollback can return to."""

    version: int
    credited: int  # vertices of the run credited up to this version
    undoes: int  # vertices credited after this version: a rollback to it undoes these credits
    at_s: float
    epoch: int | None = None  # the epoch that ends with this version


@dataclass(frozen=True)
class Undone:
    """The result of a rollback."""

    version: int  # version that the run returned to
    vertices: int  # vertices that are no longer credited
    workers: tuple[str, ...]  # workers to which they had been credited


def rollback_points(db: sqlite3.Connection) -> list[RollbackPoint]:
    """Return the versions that a rollback can return to, newest first."""
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
    """Return the rollback point that `wanted` names: "v57" or "57" for a version, "e3" for the end of the third epoch.

    Raises UsageError for any other name. The message names the `option`, and in `others` the further values that the
    option accepts.
    """
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
    """Undo all credits after a version, and end all leases, with the reason `because`. Call inside a transaction, after
    the batch of the transaction is written."""
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
    for fact in ("best", ENOUGH):
        known = read_fact(db, fact)
        if known is not None and known["version"] > version:
            db.execute("DELETE FROM run WHERE key = ?", (fact,))
    db.execute("DELETE FROM versions WHERE version > ?", (version,))
    db.execute("DELETE FROM patches WHERE version > ?", (version,))
    db.execute("DELETE FROM spans")
    undo_ticks(db, version)
    return Undone(version, sum(by_worker.values()), tuple(sorted(by_worker)))


def uncredited_spans(db: sqlite3.Connection) -> list[Span]:
    """Return the ranges of open epochs that no credit covers."""
    spans = []
    for epoch, vertices in db.execute("SELECT epoch, vertices FROM epochs WHERE closed_s IS NULL").fetchall():
        at = 0
        rows = db.execute("SELECT start, stop FROM credits WHERE epoch = ? ORDER BY start", (epoch,))
        for start, stop in [*rows, (vertices, vertices)]:
            if start > at:
                spans.append(Span(epoch, at, start))
            at = max(at, stop)
    return spans
