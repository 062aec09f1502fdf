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
from dataclasses import dataclass
from typing import NamedTuple

from gridml.protocol import bundle
from gridml.protocol.push import ReplicaPart, RowValues, decode, encode_replica
from master.store.schema import damage

TABLES = """
CREATE TABLE IF NOT EXISTS ticks (epoch INTEGER NOT NULL, tick INTEGER NOT NULL, part INTEGER NOT NULL,
  base INTEGER NOT NULL, vertices INTEGER NOT NULL, version INTEGER NOT NULL, merged INTEGER, trained BLOB,
  began BLOB, crc32 INTEGER NOT NULL, PRIMARY KEY (epoch, tick, part));
CREATE INDEX IF NOT EXISTS ticks_open ON ticks (epoch, tick) WHERE merged IS NULL;
CREATE INDEX IF NOT EXISTS ticks_kept ON ticks (merged) WHERE trained NOTNULL;
"""


@dataclass(frozen=True)
class TickPush:
    """What one part pushed of one tick."""

    base: int  #: version from which it was trained
    vertices: int
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
        row = (*tick, part, push.base, push.vertices, version, merged, trained, began, crc32)
        self._db.execute("INSERT INTO ticks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def whole_ticks(self, parts: int) -> list[Tick]:
        """Return the ticks of which every part has pushed, and that are not merged, in order."""
        query = "SELECT epoch, tick FROM ticks WHERE merged IS NULL GROUP BY epoch, tick HAVING count(*) = ?"
        return sorted(Tick(*row) for row in self._db.execute(query, (parts,)))

    def pushes_of(self, tick: Tick) -> list[TickPush]:
        """Return what the parts pushed of a tick that is not merged, in the order of parts. Raises
        sqlite3.DatabaseError if a push is damaged."""
        query = "SELECT base, vertices, trained, began, crc32 FROM ticks WHERE epoch = ? AND tick = ? ORDER BY part"
        found = []
        for base, vertices, trained, began, crc32 in self._db.execute(query, tick):
            if zlib.crc32(began, zlib.crc32(trained)) != crc32:
                raise damage(f"a push of tick {tick.number} of epoch {tick.epoch} is not what was written")
            found.append(TickPush(base, vertices, _decoded(trained), _decoded(began)))
        return found

    def merged_tick(self, tick: Tick, version: int, oldest: int) -> None:
        """Record that a tick is merged in `version`. Pushes that were merged in or before the `oldest` version to which
        a rollback can go are dropped."""
        self._db.execute("UPDATE ticks SET merged = ? WHERE epoch = ? AND tick = ?", (version, *tick))
        self._db.execute(
            "UPDATE ticks SET trained = NULL, began = NULL WHERE merged <= ? AND trained NOTNULL", (oldest,)
        )

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
