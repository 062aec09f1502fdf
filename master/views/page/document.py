"""The page of a run as one HTML file that contains its style, scripts and data, and loads nothing else.

The data is a snapshot: report, progress, history and events. Charts are drawn by uPlot, whose files come from the
package youplot and are verified by their SHA-256.
"""

from __future__ import annotations

import base64
import bisect
import dataclasses
import errno
import hashlib
import html
import importlib.util
import re
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.protocol.bundle import write_atomic
from master.state.jobs import State
from master.store.reader import RunClock, holder, opened, read_ahead, read_clock
from master.store.schema import read_series
from master.views.console import json_text
from master.views.money import read_spent
from master.views.progress import RunProgress, read_progress, without_master
from master.views.report import Report, report

POINTS = 400
_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
BANDS = 120  # points of a chart that shows a mean between a minimum and a maximum
COSTS = 60  # points of the cost chart; fewer, because each one sums over all instances
REASONS = 20  # maximum number of listed reasons for chunk sizes; the most frequent are kept
Columns = dict[str, list[float]]
Times = NDArray[np.float64]
_CREDITS = """
SELECT max(at_s), sum(stop - start) FROM credits GROUP BY cast((at_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_STALENESS = """
SELECT max(at_s), min(staleness), avg(staleness), max(staleness)
FROM credits GROUP BY cast((at_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_BYTES = """
SELECT max(at_s), sum(bytes_up), sum(bytes_down) FROM traffic GROUP BY cast((at_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_CHUNKS = """
SELECT max(opened_s), min(stop - start), avg(stop - start), max(stop - start)
FROM leases WHERE stop > start GROUP BY cast((opened_s - ?) / ? AS INTEGER) ORDER BY 1
"""
_REASONS = """
SELECT reason, count(*), min(stop - start), max(stop - start) FROM leases WHERE stop > start GROUP BY reason
"""
_PUSH_REASONS = """
SELECT push_reason, count(*), min(push_every), max(push_every)
FROM workers WHERE push_every NOTNULL AND push_reason NOTNULL GROUP BY push_reason
"""


@dataclass(frozen=True)
class SizeReason:
    """A reason for chunk sizes or push intervals, and how often it was given."""

    reason: str
    number: int  #: number of chunks or workers that it applies to
    least: int  #: smallest size or interval, in vertices
    most: int  #: largest size or interval, in vertices


@dataclass(frozen=True)
class History:
    """Charts as columns by name; the columns of a chart have equal length. `at_s` is in seconds of the run, which
    leave out periods without a master."""

    credit: Columns  #: vertices credited so far, over all epochs
    staleness: Columns  #: least, mean and most over the pushes since the previous point
    workers: Columns  #: alive now, and lost so far
    bytes: Columns  #: up and down so far
    chunks: Columns  #: least, mean and most vertices of the chunks since the previous point
    cost: Columns  #: dollars so far, as known at that time; empty if the run launched no instances
    logged: dict[str, Columns]  #: by name: `mean` of what f logged up to `credited` vertices
    chunk_reasons: list[SizeReason]
    push_reasons: list[SizeReason]


def read_history(db: sqlite3.Connection, root: Path, clock: RunClock, points: int = POINTS) -> History:
    """Return the history of the run in `root` up to `clock.end_s`."""
    width_s = max((clock.end_s - clock.start_s) / points, 1e-3)
    buckets = (clock.start_s, width_s)
    wider = (clock.start_s, width_s * max(1.0, points / BANDS))
    pushes = db.execute(_CREDITS, buckets).fetchall()
    passed = db.execute(_BYTES, buckets).fetchall()
    return History(
        credit=_columns(clock, pushes, {"credited": _running([row[1] for row in pushes])}),
        staleness=_extents(clock, db.execute(_STALENESS, wider).fetchall()),
        workers=_workers(db, clock, points),
        bytes=_columns(
            clock, passed, {"up": _running([row[1] for row in passed]), "down": _running([row[2] for row in passed])}
        ),
        chunks=_extents(clock, db.execute(_CHUNKS, wider).fetchall()),
        cost=_cost(root, clock, read_ahead(db)),
        logged=_logged(db, points),
        chunk_reasons=gather_reasons(SizeReason(*row) for row in db.execute(_REASONS)),
        push_reasons=gather_reasons(SizeReason(*row) for row in db.execute(_PUSH_REASONS)),
    )


def gather_reasons(reasons: Iterable[SizeReason]) -> list[SizeReason]:
    """Merge reasons that differ only in numbers, which become "…". Return the most frequent reasons first."""
    gathered: dict[str, SizeReason] = {}
    for one in reasons:
        words = _NUMBER.sub("…", one.reason)
        if (other := gathered.get(words)) is not None:
            least, most = min(one.least, other.least), max(one.most, other.most)
            one = SizeReason(words, one.number + other.number, least, most)
        gathered[words] = one
    return sorted(gathered.values(), key=lambda one: (-one.number, one.reason))[:REASONS]


def _columns(clock: RunClock, rows: list[Any], others: Columns) -> Columns:
    return {"at_s": [round(clock.at(row[0]), 3) for row in rows], **others}


def _extents(clock: RunClock, rows: list[Any]) -> Columns:
    names = ("least", "mean", "most")
    return _columns(clock, rows, {name: [row[i] for row in rows] for i, name in enumerate(names, 1)})


def _running(values: list[float]) -> list[float]:
    return [float(value) for value in np.cumsum(values)]


def _workers(db: sqlite3.Connection, clock: RunClock, points: int) -> Columns:
    """Return the numbers of live and lost workers at each change, or at equal steps if there are more than twice
    `points` changes."""
    rows = db.execute(
        "SELECT started_s, ended_s, state IN (?, ?) AND NOT (coalesce(cancelled, 0) AND coalesce(graceful, 0)) "
        "FROM workers WHERE started_s NOTNULL",
        (State.EVICTED, State.LOST),
    ).fetchall()
    begun = np.sort([row[0] for row in rows])
    ended = np.sort([row[1] for row in rows if row[1] is not None])
    lost = np.sort([row[1] for row in rows if row[1] is not None and row[2]])
    at_s = np.unique([clock.start_s, *begun, *ended, clock.end_s])
    if len(at_s) > 2 * points:
        at_s = np.linspace(clock.start_s, clock.end_s, points)
    return {
        "at_s": [round(clock.at(float(t)), 3) for t in at_s],
        "alive": _counts(begun, at_s, -_up_to(ended, at_s)),
        "lost": _counts(lost, at_s),
    }


def _up_to(times: Times, at_s: Times) -> Times:
    return np.searchsorted(times, at_s, side="right").astype(np.float64)


def _counts(times: Times, at_s: Times, added: Times | float = 0.0) -> list[float]:
    """Return the number of `times` up to each of `at_s`, plus `added`."""
    return [float(count) for count in _up_to(times, at_s) + added]


def _cost(root: Path, clock: RunClock, ahead_s: float) -> Columns:
    at_s = [float(t) for t in np.linspace(clock.start_s, clock.end_s, COSTS)]
    spent = read_spent(root, [t - ahead_s for t in at_s])
    return {"at_s": [round(clock.at(t), 3) for t in at_s] if spent else [], "dollars": spent}


def _logged(db: sqlite3.Connection, points: int) -> dict[str, Columns]:
    logged: dict[str, Columns] = {}
    for mean in read_series(db, points):
        columns = logged.setdefault(mean.name, {"credited": [], "mean": []})
        columns["credited"].append(float(mean.credited))
        columns["mean"].append(mean.mean)
    return logged


EVENTS = 20_000  # newest events in a page; more would make a browser slow
DIGEST = 12  # hexadecimal digits of a part's digest: enough to distinguish its versions


@dataclass(frozen=True)
class PageEvents:
    """Events as columns, oldest first."""

    last: int  #: number of the newest event in the ledger; the page's next request asks for later ones
    left_out: int  #: older events omitted because of the limit
    number: list[int]
    at_s: list[float]  #: seconds of the run
    time_s: list[float]  #: seconds since 1970
    topic: list[str]
    text: list[str]

    def after(self, number: int) -> PageEvents:
        """Return the events after the one with this number."""
        at = bisect.bisect_right(self.number, number)
        left_out = self.left_out if at == 0 and number == 0 else 0
        columns = (self.number, self.at_s, self.time_s, self.topic, self.text)
        return PageEvents(self.last, left_out, *(column[at:] for column in columns))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PageFacts:
    """All data of a page."""

    report: Report  #: as in `gridml report --json`
    progress: RunProgress  #: as in `gridml status --json`
    driven: bool  #: a master drives the run now
    began_s: float  #: start of the run, in seconds since 1970
    history: History
    events: PageEvents
    trouble: str | None = None  #: why the run cannot be read now (the data is then older); None: the data is current

    def after(self, number: int) -> PageFacts:
        """Return the data with only the events after `number`, because the client has the earlier events."""
        return dataclasses.replace(self, events=self.events.after(number))

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "progress": self.progress.to_json()}


def changed_parts(facts: PageFacts, digests: Collection[str]) -> dict[str, Any]:
    """Return `facts.to_json()` without the parts whose digest the client already has, plus the `digests` of all parts.
    The parts are the report, the progress, and each member of the history."""
    answer = facts.to_json()
    kept = frozenset(digests)
    of_all = [digest for name in ("report", "progress") for digest in _drop_kept(answer, name, kept)]
    for name in list(answer["history"]):
        of_all += _drop_kept(answer["history"], name, kept)
    return {**answer, "digests": of_all}


def _drop_kept(parts: dict[str, Any], name: str, kept: Collection[str]) -> list[str]:
    """Remove a part if its digest is in `kept`; return the digest."""
    digest = hashlib.sha256(f"{name} {json_text(parts[name])}".encode()).hexdigest()[:DIGEST]
    if digest in kept:
        del parts[name]
    return [digest]


def read_page_facts(root: Path) -> PageFacts:
    """Return the data of a page for the run in `root`.

    Raises LedgerError if the directory holds no run or its ledger cannot be read.
    """
    figures = report(root)
    driven = holder(root) is not None
    with opened(root) as db:
        clock = read_clock(db, root)
        progress = read_progress(db, clock.end_s)
        return PageFacts(
            report=figures,
            progress=progress if driven else without_master(progress),
            driven=driven,
            began_s=clock.start_s - read_ahead(db),
            history=read_history(db, root, clock),
            events=_read_events(db, clock),
        )


def _read_events(db: sqlite3.Connection, clock: RunClock) -> PageEvents:
    rows = db.execute("SELECT rowid, at_s, topic, text FROM events ORDER BY rowid DESC LIMIT ?", (EVENTS,)).fetchall()[
        ::-1
    ]
    ahead_s = read_ahead(db)
    number = db.execute("SELECT count(*) FROM events").fetchone()[0]
    return PageEvents(
        last=rows[-1][0] if rows else 0,
        left_out=number - len(rows),
        number=[row[0] for row in rows],
        at_s=[round(clock.at(row[1]), 3) for row in rows],
        time_s=[round(row[1] - ahead_s, 3) for row in rows],
        topic=[row[2] for row in rows],
        text=[row[3] for row in rows],
    )


PACKAGE = "youplot"
SCRIPT = "uplot.iife.min.js"
STYLE = "uplot.min.css"
SHA256 = {  # of uPlot 1.6.31
    SCRIPT: "2d27e8ad3d228164525ce213f9dc716f39b4e3aee0cc773fb3491c96cf4921a2",
    STYLE: "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
INSTALL = f"pip install {PACKAGE}==1.0.0"  # this version only, because the files are checked by their SHA-256


@dataclass(frozen=True)
class ChartLibrary:
    """The text of uPlot's two files."""

    script: str
    style: str


def read_library() -> ChartLibrary:
    """Return uPlot's files. Raises UsageError if they are not installed or not the expected version.

    The package is located, not imported: none of its code runs here.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(f"A page needs uPlot from {PACKAGE}, which is not installed. Install it with: {INSTALL}")
    folder = Path(spec.origin).parent / "vendor"
    return ChartLibrary(*(_read_checked(folder / name) for name in (SCRIPT, STYLE)))


def _read_checked(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Reinstall it with: {INSTALL}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[path.name]:
        raise UsageError(
            f"{path} has the SHA-256 {digest}, expected {SHA256[path.name]} of uPlot 1.6.31. "
            f"Install the right one with: {INSTALL}"
        )
    return content.decode()


STYLES = ("page.css",)
SCRIPTS = (
    "numbers.js",
    "ticks.js",
    "described.js",
    "charts.js",
    "summary.js",
    "events.js",
    "page.js",
)  # in the order in which they must run


def write_page(root: Path, file: Path) -> None:
    """Write the page of the run in `root` to a file, atomically.

    Raises LedgerError if there is no such run, UsageError if the file cannot be written.
    """
    text = render_page(read_page_facts(root))
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        advice = "Give a file in an existing folder, as in --html run.html."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "Free space on its disk, or give a file on another, as in --html /elsewhere/run.html."
        raise UsageError(f"{file} cannot be written: {error.strerror}. {advice}") from error


def render_page(facts: PageFacts, *, live: bool = False) -> str:
    """Return the page as HTML. A `live` page requests changes from the relative address `data`; any other page makes no
    requests, which its content security policy enforces."""
    library = read_library()
    style = "\n".join((library.style, *map(_own, STYLES)))
    script = "\n".join((library.script, *map(_own, SCRIPTS)))
    parts = {
        "policy": policy(style, script, live=live),
        "title": html.escape(f"{facts.report.program}: {facts.report.status}"),
        "style": style,
        "live": "yes" if live else "no",
        # "</script>" in the data would end the element around the JSON, so each "<" is escaped; the JSON stays equal.
        "data": json_text(facts.to_json()).replace("<", "\\u003c"),
        "script": script,
    }
    # In one pass, because inserted text may itself contain {{...}}.
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], _own("page.html"))


def policy(style: str, script: str, *, live: bool) -> str:
    """Return the content security policy of a page: only this style and this script; requests only if `live`."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _own(name: str) -> str:
    return files("master.views.page").joinpath(name).read_text("utf-8")
