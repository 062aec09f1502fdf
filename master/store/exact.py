"""Whether the credits of a ledger are exact, counted from its rows: any sum in it may be wrong, and is compared.

`master.simulation.exact` verifies more, and independently of this, for tests.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from master.store.sealed import read_fact

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
