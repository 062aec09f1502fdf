"""Values of the ledger that nothing else could contradict (figures, facts of a run), as JSON, and beside it a checksum:
SQLite has none for what its cells hold, and a flipped bit makes another figure of a figure."""

from __future__ import annotations

import json
import sqlite3
import zlib
from typing import Any, NamedTuple


class Sealed(NamedTuple):
    """JSON text and its CRC-32, each for a column of its own."""

    text: str
    crc32: int


def seal(value: Any) -> Sealed:
    """Return what two columns hold of a value."""
    text = json.dumps(value)
    return Sealed(text, zlib.crc32(text.encode()))


def unseal(text: Any, crc32: Any) -> Any:
    """Return the value that two columns hold. Raises sqlite3.DatabaseError, as SQLite does for what it can see of
    damage."""
    if not isinstance(text, str) or zlib.crc32(text.encode()) != crc32:
        raise damage(f"{text!r:.99} is not what was written: its checksum is not {crc32!r:.99}")
    return json.loads(text)


def read_fact(ledger: sqlite3.Connection, key: str, default: Any = None) -> Any:
    """Return what the table `run` says of a run. Raises as `unseal` does."""
    sealed = ledger.execute("SELECT value, crc32 FROM run WHERE key = ?", (key,)).fetchone()
    return default if sealed is None else unseal(*sealed)


def check_sealed(ledger: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError for the first sealed value of a ledger that is not what was written."""
    for sealed in ledger.execute(
        "SELECT value, crc32 FROM run "
        "UNION ALL SELECT metrics, metrics_crc32 FROM epochs WHERE metrics NOTNULL OR metrics_crc32 NOTNULL"
    ):
        unseal(*sealed)
    for *row, crc32 in ledger.execute("SELECT version, epoch, name, total, vertices, crc32 FROM logged"):
        if seal(row).crc32 != crc32:
            raise damage(f"{row!r:.99} is not what was written: its checksum is not {crc32!r:.99}")


def damage(problem: str) -> sqlite3.DatabaseError:
    """Return an error such as SQLite's own for what it can see of damage."""
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
