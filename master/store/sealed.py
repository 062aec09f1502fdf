"""Values of the ledger that nothing else could contradict (figures, facts of a run), as JSON with a checksum: SQLite
has none for what its cells hold, and a flipped bit makes another figure of a figure."""

from __future__ import annotations

import json
import sqlite3
import zlib
from typing import Any


def seal(value: Any) -> str:
    """Return JSON text, and the CRC-32 of it in hexadecimal."""
    text = json.dumps(value)
    return f"{text} {_checksum(text)}"


def unseal(sealed: str) -> Any:
    """Return the value again. Raises sqlite3.DatabaseError, as SQLite does for what it can see of damage."""
    text, _, checksum = sealed.rpartition(" ")
    if checksum != _checksum(text):
        raise damage(f"{sealed!r:.99} is not what was written: its checksum is {_checksum(text)}")
    return json.loads(text)


def check_sealed(ledger: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError for the first sealed value of a ledger that is not what was written."""
    for (sealed,) in ledger.execute("SELECT value FROM run UNION ALL SELECT metrics FROM epochs WHERE metrics NOTNULL"):
        unseal(sealed)


def damage(problem: str) -> sqlite3.DatabaseError:
    """Return an error such as SQLite's own for what it can see of damage."""
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
