"""The page of a run as one HTML file, with its style, its scripts and its content inside; it loads nothing else.

The content is of one moment: the report, the progress of the run, its course over time, and its events. uPlot,
which draws the charts, is brought by the package youplot, whose files are taken as they are and checked.
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
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from gridml.errors import UsageError
from gridml.protocol.bundle import write_atomic
from master.store.reader import RunClock, holder, opened, read_ahead, read_clock
from master.views.console import json_text
from master.views.page.history import History, read_history
from master.views.progress import RunProgress, read_progress, without_master
from master.views.report import Report, report

EVENTS = 20_000  # that a page has at most, the newest
DIGEST = 12  # hexadecimal digits


@dataclass(frozen=True)
class PageEvents:
    """Events as columns, oldest first: seconds of the run, seconds since 1970, topic, text. `last` is the number of the
    newest in the ledger, from which the next ones are asked for; `left_out` are older ones of which there are too
    many."""

    last: int
    left_out: int
    number: list[int]
    at_s: list[float]
    time_s: list[float]
    topic: list[str]
    text: list[str]

    def after(self, number: int) -> PageEvents:
        """Return those behind the event of a number."""
        at = bisect.bisect_right(self.number, number)
        left_out = self.left_out if at == 0 and number == 0 else 0
        columns = (self.number, self.at_s, self.time_s, self.topic, self.text)
        return PageEvents(self.last, left_out, *(column[at:] for column in columns))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PageFacts:
    """`report` and `progress` are what `gridml report --json` and `gridml status --json` print; `driven` is whether a
    master drives the run now; `began_s` is when it began, in seconds since 1970. `trouble` says why it cannot be read
    now and these are facts of before, None where it can."""

    report: Report
    progress: RunProgress
    driven: bool
    began_s: float
    history: History
    events: PageEvents
    trouble: str | None = None

    def after(self, number: int) -> PageFacts:
        """Return the same with the events behind a number alone: the others are known to who asks."""
        return dataclasses.replace(self, events=self.events.after(number))

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "progress": self.progress.to_json()}


def news(facts: PageFacts, digests: Collection[str]) -> dict[str, Any]:
    """Return what `to_json` does without the parts whose digests who asks has kept, and the `digests` of all parts:
    a part is the report, the progress, or one member of the history."""
    answer = facts.to_json()
    kept = frozenset(digests)
    of_all = [digest for name in ("report", "progress") for digest in _drop_kept(answer, name, kept)]
    for name in list(answer["history"]):
        of_all += _drop_kept(answer["history"], name, kept)
    return {**answer, "digests": of_all}


def _drop_kept(parts: dict[str, Any], name: str, kept: Collection[str]) -> list[str]:
    """Take a part out if its digest is one of those `kept`; return that."""
    digest = hashlib.sha256(f"{name} {json_text(parts[name])}".encode()).hexdigest()[:DIGEST]
    if digest in kept:
        del parts[name]
    return [digest]


def read_page_facts(root: Path) -> PageFacts:
    """Return what a page shows of the run in `root`.

    Raises LedgerError when the directory holds no run, or one that cannot be read.
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
INSTALL = f"pip install {PACKAGE}==1.0.0"  # no other version: the files are checked by their SHA-256


@dataclass(frozen=True)
class ChartLibrary:
    """The text of uPlot's two files."""

    script: str
    style: str


def read_library() -> ChartLibrary:
    """Return uPlot. Raises UsageError when it is not installed, or not the one that this page was made for.

    The package that brings it is not imported: nothing of it runs here.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(f"A page needs uPlot, which {PACKAGE} brings and is not installed. Get it with: {INSTALL}")
    folder = Path(spec.origin).parent / "vendor"
    return ChartLibrary(*(_read_checked(folder / name) for name in (SCRIPT, STYLE)))


def _read_checked(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Install it again with: {INSTALL}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[path.name]:
        raise UsageError(
            f"{path} has the SHA-256 {digest}, expected {SHA256[path.name]} of uPlot 1.6.31. "
            f"Install the right one with: {INSTALL}"
        )
    return content.decode()


STYLES = ("page.css",)
SCRIPTS = ("numbers.js", "ticks.js", "described.js", "charts.js", "summary.js", "events.js", "page.js")  # as one text


def write_page(root: Path, file: Path) -> None:
    """Write the page of the run in `root` into one file, whole or not at all.

    Raises LedgerError when there is no such run, UsageError when the file cannot be written.
    """
    text = render_page(read_page_facts(root))
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        advice = "Name a file in a folder that is there, as in --html run.html."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "Make room on its disk, or name a file on another, as in --html /elsewhere/run.html."
        raise UsageError(f"{file} cannot be written: {error.strerror}. {advice}") from error


def render_page(facts: PageFacts, *, live: bool = False) -> str:
    """Return the page as HTML. One that is `live` asks the address `data` beside its own for what is new; one that is
    not can ask for nothing, which its policy makes sure of."""
    library = read_library()
    style = "\n".join((library.style, *map(_own, STYLES)))
    script = "\n".join((library.script, *map(_own, SCRIPTS)))
    parts = {
        "policy": policy(style, script, live=live),
        "title": html.escape(f"{facts.report.program}: {facts.report.status}"),
        "style": style,
        "live": "yes" if live else "no",
        # A "<" could end the element that it stands in; as an escape it is the same text to whoever reads JSON.
        "data": json_text(facts.to_json()).replace("<", "\\u003c"),
        "script": script,
    }
    # In one pass: what is put in may look like a place of its own.
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], _own("page.html"))


def policy(style: str, script: str, *, live: bool) -> str:
    """Return the content security policy of a page: only this style and this script, and no request unless `live`."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _own(name: str) -> str:
    return files("master.views.page").joinpath(name).read_text("utf-8")
