"""The schema of a ledger, cells with a checksum, and the queries for logged means.

There is no migration: a run is finished with the gridml that began it.

A row of the table `logged` belongs to a version, an epoch and a name. Its `total` is the sum of the values that the
pushes of the version logged under the name, and its `vertices` is the number of credited vertices that the sum covers.
SQL computes means from these rows: the sum of the totals divided by the sum of the vertices.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from gridml.protocol.foreign import MAX_INTEGER


# SQLite has no checksums of cells, so it does not notice a flipped bit that turns one number into another. Damage to
# metrics and facts contradicts no other row, so they are stored with a checksum.
class Checksummed(NamedTuple):
    """JSON text and its CRC-32, each for a column of its own."""

    text: str
    crc32: int


def encode_checksummed(value: Any) -> Checksummed:
    """Encode a value as JSON text and checksum, for two columns."""
    text = json.dumps(value)
    return Checksummed(text, zlib.crc32(text.encode()))


def decode_checksummed(text: Any, crc32: Any) -> Any:
    """Decode a value from two columns. Raises sqlite3.DatabaseError on a wrong checksum, as SQLite does for damage."""
    if not isinstance(text, str) or zlib.crc32(text.encode()) != crc32:
        raise damage(f"{text!r:.99} is not what was written: its checksum is not {crc32!r:.99}")
    return json.loads(text)


ENOUGH = "enough"  # a fact of the run: by which `global_sync` it ends, in which pass and version


def read_fact(ledger: sqlite3.Connection, key: str, default: Any = None) -> Any:
    """Return a fact of the table `run`. Raises as `decode_checksummed` does."""
    cells = ledger.execute("SELECT value, crc32 FROM run WHERE key = ?", (key,)).fetchone()
    return default if cells is None else decode_checksummed(*cells)


def verify_file(ledger: sqlite3.Connection) -> None:
    """Verify the structure, the tables and the checksums of a ledger. Raises sqlite3.DatabaseError."""
    if (verdict := ledger.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise damage(" ".join(verdict.split()))
    check_tables(ledger)
    for cells in ledger.execute(
        "SELECT value, crc32 FROM run "
        "UNION ALL SELECT metrics, metrics_crc32 FROM epochs WHERE metrics NOTNULL OR metrics_crc32 NOTNULL"
    ):
        decode_checksummed(*cells)
    for *row, crc32 in ledger.execute("SELECT version, epoch, name, total, vertices, crc32 FROM logged"):
        if encode_checksummed(row).crc32 != crc32:
            raise damage(f"{row!r:.99} is not what was written: its checksum is not {crc32!r:.99}")


def damage(problem: str) -> sqlite3.DatabaseError:
    """Return an error with the code that SQLite uses for a damaged file."""
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


SCHEMA_VERSION = 8
# Bounds of cells: a value outside them is damage. Numbers are not negative, except in the columns of SIGNED and SUMS,
# which are named by (table, column).
MAX_TIME_S = 1e12  # maximum in REAL columns: times, durations, staleness
SIGNED = {("failures", "first"), ("failures", "last")}  # -1 if f did not fail in a batch
SUMS = {("logged", "total")}  # sums of any sign
MAX_SUM = 1e60  # maximum absolute value in SUMS, above any sum over all vertices
SCHEMA = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc32 INTEGER NOT NULL);
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, vertices INTEGER NOT NULL, credited INTEGER NOT NULL DEFAULT 0,
  opened_s REAL NOT NULL, closed_s REAL, version INTEGER, metrics TEXT, metrics_crc32 INTEGER);
CREATE TABLE spans (epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, failed TEXT NOT NULL,
  PRIMARY KEY (epoch, start));
CREATE TABLE leases (id INTEGER PRIMARY KEY, term INTEGER NOT NULL, epoch INTEGER NOT NULL, start INTEGER NOT NULL,
  stop INTEGER NOT NULL, upto INTEGER NOT NULL, worker TEXT NOT NULL, sequence INTEGER NOT NULL, version INTEGER,
  failed TEXT NOT NULL DEFAULT '', trained INTEGER NOT NULL, reason TEXT NOT NULL, opened_s REAL NOT NULL,
  closed_s REAL, closed_because TEXT, reserved_until_s REAL, overtaken INTEGER NOT NULL DEFAULT 0);
CREATE TABLE credits (epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, lease INTEGER NOT NULL,
  version INTEGER NOT NULL, worker TEXT NOT NULL, staleness REAL NOT NULL, at_s REAL NOT NULL);
CREATE TABLE logged (version INTEGER NOT NULL, epoch INTEGER NOT NULL, name TEXT NOT NULL, total REAL NOT NULL,
  vertices INTEGER NOT NULL, crc32 INTEGER NOT NULL);
CREATE TABLE traffic (at_s REAL NOT NULL, bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY, sha256 TEXT, credited INTEGER NOT NULL, pushes INTEGER NOT NULL,
  at_s REAL NOT NULL, kept INTEGER NOT NULL DEFAULT 1);
CREATE TABLE patches (version INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE workers (worker TEXT PRIMARY KEY, state TEXT NOT NULL, machine TEXT, kind TEXT, graceful INTEGER,
  cancelled INTEGER, detail TEXT, pid INTEGER, submitted_s REAL NOT NULL, started_s REAL, first_sync_s REAL,
  ended_s REAL, trained INTEGER NOT NULL DEFAULT 0, train_s REAL NOT NULL DEFAULT 0,
  credited INTEGER NOT NULL DEFAULT 0, push_every INTEGER, push_reason TEXT, bytes_up INTEGER NOT NULL DEFAULT 0,
  bytes_down INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0, avoided_until_s REAL, avoided_because TEXT);
CREATE TABLE machines (name TEXT PRIMARY KEY, failures INTEGER NOT NULL, distrusted INTEGER NOT NULL,
  avoided_until_s REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE blames (at_s REAL NOT NULL, worker TEXT NOT NULL, lease INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE altered (worker TEXT NOT NULL, how TEXT NOT NULL, pushes INTEGER NOT NULL, vertices INTEGER NOT NULL,
  at_s REAL NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (worker, how));
CREATE TABLE quarantined (worker TEXT PRIMARY KEY, at_s REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE failures (at_s REAL NOT NULL, worker TEXT NOT NULL, machine TEXT NOT NULL, lease INTEGER NOT NULL,
  epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, message TEXT NOT NULL,
  traceback TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE events (at_s REAL NOT NULL, topic TEXT NOT NULL, text TEXT NOT NULL,
  facts TEXT NOT NULL DEFAULT '{}');
"""


def check_tables(ledger: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError if a table differs from the schema, or a cell holds a value that no master writes
    (of another type, NULL, or out of bounds). Reads every row, about 300,000 leases per second."""
    there = _tables(ledger)
    for name, made in _made().items():
        if name not in there:
            raise damage(f"no such table: {name}")
        if there[name] != made:
            raise damage(f"its table {name} is another one: {there[name]!r:.500}")
    for table, possible in _possible().items():
        wrong = f"SELECT {', '.join(possible)} FROM {table} WHERE NOT ({' AND '.join(possible.values())}) LIMIT 1"
        for row in ledger.execute(wrong):
            cells = dict(zip(possible, row, strict=True))
            raise damage(f"its table {table} holds what no master of gridml writes: {cells!r:.500}")


@cache
def _made() -> dict[str, tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _tables(db)


def _tables(db: sqlite3.Connection) -> dict[str, tuple[Any, ...]]:
    """Return tables and indices by name, with the SQL that created each."""
    return {row[0]: row for row in db.execute("SELECT name, tbl_name, type, sql FROM sqlite_master")}


@cache
def _possible() -> dict[str, dict[str, str]]:
    """Return the SQL condition that each cell must satisfy, by table and column."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        columns = {table: db.execute(f"PRAGMA table_info({table})").fetchall() for table in _tables(db)}
    return {
        table: {name: _condition(table, name, *rest) for _, name, *rest in rows}
        for table, rows in columns.items()
        if rows  # an index has none
    }


def _condition(table: str, column: str, declared: str, not_null: int, default: object, key: int) -> str:
    # typeof() detects NULL in a column declared NOT NULL. ISNULL would not, because SQLite's optimiser drops that test.
    condition = f"typeof({column}) = '{declared.lower()}'"
    if declared != "TEXT":
        least: float = -1 if (table, column) in SIGNED else 0
        most = MAX_INTEGER if declared == "INTEGER" else MAX_TIME_S
        if (table, column) in SUMS:
            least, most = -MAX_SUM, MAX_SUM
        condition += f" AND {column} BETWEEN {least} AND {most}"
    return f"({condition})" if not_null or key else f"({column} ISNULL OR {condition})"


MAX_RECENT_ROWS = 256  # rows of `logged` that `read_recent` covers
_BY_EPOCH = "SELECT epoch, name, sum(total) / sum(vertices) FROM logged GROUP BY epoch, name ORDER BY epoch, min(rowid)"
_LATELY = """
SELECT name, sum(total) / sum(vertices) FROM (SELECT name, total, vertices FROM logged ORDER BY rowid DESC LIMIT ?)
GROUP BY name ORDER BY name
"""
# Rows of `logged` are in the order of versions. So the search for the first row goes backwards from the newest row, and
# its cost does not grow with the length of the run.
_SINCE = """
SELECT max(versions.credited), max(epoch), logged.name, sum(total) / sum(vertices), sum(vertices)
FROM logged JOIN versions USING (version) WHERE logged.rowid > coalesce((SELECT rowid FROM logged WHERE version <= (
  SELECT version FROM versions WHERE credited <= ? ORDER BY version DESC LIMIT 1) ORDER BY rowid DESC LIMIT 1), 0)
GROUP BY logged.name ORDER BY logged.name
"""
_EVALUATED = """
SELECT versions.credited, epoch, closed_s, metrics, metrics_crc32 FROM epochs JOIN versions USING (version)
WHERE metrics IS NOT NULL AND versions.credited > ? ORDER BY epoch
"""
_SERIES = """
SELECT max(versions.credited), max(epoch), logged.name, sum(total) / sum(vertices), sum(vertices)
FROM logged JOIN versions USING (version)
GROUP BY (versions.credited - 1) / ?, logged.name ORDER BY max(versions.credited), logged.name
"""


@dataclass(frozen=True)
class LoggedMean:
    """The mean of what f logged under a name, over a range of the run."""

    credited: int  # vertices of the run credited at the end of the range
    epoch: int  # last epoch of the range, from 0
    name: str
    mean: float
    vertices: int  # credited vertices that the mean covers


def read_by_epoch(db: sqlite3.Connection) -> dict[int, dict[str, float]]:
    """Return the means by epoch (from 0) and name, names in the order of their first row."""
    means: dict[int, dict[str, float]] = {}
    for epoch, name, mean in db.execute(_BY_EPOCH):
        means.setdefault(epoch, {})[name] = mean
    return means


def read_recent(db: sqlite3.Connection) -> dict[str, float]:
    """Return the means over the newest `MAX_RECENT_ROWS` rows, by name."""
    return dict(db.execute(_LATELY, (MAX_RECENT_ROWS,)).fetchall())


def read_since(db: sqlite3.Connection, credited: int) -> list[LoggedMean]:
    """Return the means, one per name, over all vertices credited after the first `credited` ones of the run."""
    return [LoggedMean(*row) for row in db.execute(_SINCE, (credited,))]


def read_evaluated_since(db: sqlite3.Connection, credited: int) -> list[tuple[int, int, float, dict[str, Any]]]:
    """Return (vertices credited, epoch from 0, time of its end, metrics) of each evaluation after the first `credited`
    vertices of the run, in the order of epochs. Of evaluations at the same number of vertices, only
    the first is returned."""
    evaluations = []
    for step, epoch, at_s, *cells in db.execute(_EVALUATED, (credited,)):
        if step > credited:  # false for a second epoch that ends with the same version
            evaluations.append((step, epoch, at_s, decode_checksummed(*cells)))
            credited = step
    return evaluations


def read_series(db: sqlite3.Connection, points: int) -> list[LoggedMean]:
    """Return the means over equal parts of the credited vertices, about `points` per name, oldest first."""
    credited = db.execute("SELECT coalesce(max(credited), 0) FROM versions").fetchone()[0]
    return [LoggedMean(*row) for row in db.execute(_SERIES, (max(1, -(-credited // max(1, points))),))]
