"""Rows of a ledger about ticks: one for each mini-batch of each part that is credited, with what was pushed of it.

Pushes of a tick are credited as they arrive. Where they are merged together, when all parts have pushed, their rows are
here until then, so that a credited push is never lost, and no worker sees half of a tick. Afterwards the rows of the
table are the record of what began from what: `base` is the version from which a mini-batch was trained, `merged` the
version that first has it.

A ledger has the table only if its program has finite slack.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gridml.protocol import bundle
from gridml.protocol.push import ReplicaPart, RowValues, decode, encode_replica
from master.store.schema import damage

Array = NDArray[Any]

TABLES = """
CREATE TABLE IF NOT EXISTS ticks (epoch INTEGER NOT NULL, tick INTEGER NOT NULL, part INTEGER NOT NULL,
  base INTEGER NOT NULL, vertices INTEGER NOT NULL, version INTEGER NOT NULL, merged INTEGER, trained BLOB,
  began BLOB, crc32 INTEGER NOT NULL, scale REAL NOT NULL, pulls BLOB, PRIMARY KEY (epoch, tick, part));
CREATE INDEX IF NOT EXISTS ticks_open ON ticks (epoch, tick) WHERE merged IS NULL;
CREATE INDEX IF NOT EXISTS ticks_kept ON ticks (merged) WHERE trained NOTNULL;
CREATE INDEX IF NOT EXISTS ticks_pulls ON ticks (merged) WHERE pulls NOTNULL;
"""


@dataclass(frozen=True)
class TickPush:
    """What one part pushed of one tick."""

    base: int  #: version from which it was trained
    vertices: int
    scale: float  #: factor in (0, 1] for its steps, as the gate decided
    trained: dict[str, RowValues]  #: rows by type, as the worker left them
    began: dict[str, RowValues]  #: the same rows in version `base`


class Tick(NamedTuple):
    """A tick of a pass."""

    epoch: int
    number: int


class TickRows:
    """The rows about ticks of a `Ledger`. Call `keep_ticks` first, and methods that write only inside a transaction."""

    _db: sqlite3.Connection

    def keep_ticks(self) -> None:
        """Make the table, unless it is there."""
        for statement in TABLES.split(";")[:-1]:  # not executescript, which would commit the transaction
            self._db.execute(statement)

    def add_to_tick(self, tick: Tick, part: int, push: TickPush, version: int, merged: int | None) -> None:
        """Record a push that is credited in `version`, and `merged` in that version, or not yet. Raises
        sqlite3.IntegrityError if this mini-batch was credited before."""
        trained, began = _encoded(push.trained), _encoded(push.began)
        crc32 = zlib.crc32(began, zlib.crc32(trained))
        row = (*tick, part, push.base, push.vertices, version, merged, trained, began, crc32, push.scale)
        self._db.execute("INSERT INTO ticks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)

    def whole_ticks(self, parts: int) -> list[Tick]:
        """Return the ticks of which every part has pushed, and that are not merged, in order."""
        query = "SELECT epoch, tick FROM ticks WHERE merged IS NULL GROUP BY epoch, tick HAVING count(*) = ?"
        return sorted(Tick(*row) for row in self._db.execute(query, (parts,)))

    def pushes_of(self, tick: Tick) -> list[TickPush]:
        """Return what the parts pushed of a tick that is not merged, in the order of parts. Raises
        sqlite3.DatabaseError if a push is damaged."""
        query = (
            "SELECT base, vertices, scale, trained, began, crc32 FROM ticks WHERE epoch = ? AND tick = ? ORDER BY part"
        )
        found = []
        for base, vertices, scale, trained, began, crc32 in self._db.execute(query, tick):
            if zlib.crc32(began, zlib.crc32(trained)) != crc32:
                raise damage(f"a push of tick {tick.number} of epoch {tick.epoch} is not what was written")
            found.append(TickPush(base, vertices, scale, _decoded(trained), _decoded(began)))
        return found

    def merged_tick(self, tick: Tick, version: int, oldest: int, pulls: Mapping[str, Array]) -> None:
        """Record that a tick is merged in `version`, and what is measured of how strongly pushes pull rows by then.
        What a rollback to the `oldest` version cannot need is dropped."""
        state = bundle.encode({}, pulls) if pulls else None
        self._db.execute("UPDATE ticks SET merged = ? WHERE epoch = ? AND tick = ?", (version, *tick))
        self._db.execute("UPDATE ticks SET pulls = ? WHERE epoch = ? AND tick = ? AND part = 0", (state, *tick))
        self._db.execute(
            "UPDATE ticks SET pulls = NULL WHERE pulls NOTNULL AND merged < "
            "(SELECT max(merged) FROM ticks WHERE merged <= ? AND pulls NOTNULL)",
            (oldest,),
        )
        self._db.execute(
            "UPDATE ticks SET trained = NULL, began = NULL WHERE merged <= ? AND trained NOTNULL", (oldest,)
        )

    def last_merged(self) -> tuple[Tick, int] | None:
        """Return the newest tick that is merged, and the version; None if there is none."""
        query = "SELECT epoch, tick, merged FROM ticks WHERE merged NOTNULL ORDER BY epoch DESC, tick DESC LIMIT 1"
        row = self._db.execute(query).fetchone()
        return None if row is None else (Tick(*row[:2]), row[2])

    def pulls_after(self, tick: Tick) -> dict[str, Array]:
        """Return what was measured when a tick was merged. Raises sqlite3.DatabaseError if it is damaged."""
        query = "SELECT pulls FROM ticks WHERE epoch = ? AND tick = ? AND part = 0"
        (state,) = self._db.execute(query, tick).fetchone()
        try:
            return {} if state is None else bundle.decode(state)[1]
        except ValueError as error:
            raise damage(f"the pulls after tick {tick.number} of epoch {tick.epoch} are no bundle") from error

    def merged_since(self, base: int) -> int:
        """Return the vertices of the ticks that were merged after version `base`."""
        (count,) = self._db.execute(
            "SELECT coalesce(sum(vertices), 0) FROM ticks WHERE merged > ? AND epoch >= "
            "(SELECT max(epoch) - 1 FROM ticks)",
            (base,),
        ).fetchone()
        return int(count)


def undo_ticks(db: sqlite3.Connection, version: int) -> None:
    """Undo the credits after a version, and the merges of pushes that were credited before."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'ticks'").fetchone() is not None:
        db.execute("DELETE FROM ticks WHERE version > ?", (version,))
        db.execute("UPDATE ticks SET merged = NULL WHERE merged > ?", (version,))


def _encoded(rows: dict[str, RowValues]) -> bytes:
    return bundle.encode({}, encode_replica(ReplicaPart({}, rows)))


def _decoded(payload: bytes) -> dict[str, RowValues]:
    return dict(decode(bundle.decode(payload)[1]).replica.rows)
