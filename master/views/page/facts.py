"""What a page shows of a run: the report, how far it is, how it went over time, and its events, of one moment."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.store.reader import holder, opened
from master.store.run_facts import RunClock, read_ahead, read_clock
from master.views.json_text import json_text
from master.views.page.history import History, read_history
from master.views.progress import Progress, at_rest, read_progress
from master.views.report import Report, report

EVENTS = 20_000  # that a page has at most, the newest
DIGEST = 12  # hexadecimal digits


@dataclass(frozen=True)
class Events:
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

    def after(self, number: int) -> Events:
        """Return those behind the event of a number."""
        at = bisect.bisect_right(self.number, number)
        left_out = self.left_out if at == 0 and number == 0 else 0
        columns = (self.number, self.at_s, self.time_s, self.topic, self.text)
        return Events(self.last, left_out, *(column[at:] for column in columns))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PageFacts:
    """`report` and `progress` are what `gridml report --json` and `gridml status --json` print; `driven` is whether a
    master drives the run now; `began_s` is when it began, in seconds since 1970. `trouble` says why it cannot be read
    now and these are facts of before, None where it can."""

    report: Report
    progress: Progress
    driven: bool
    began_s: float
    history: History
    events: Events
    trouble: str | None = None

    def after(self, number: int) -> PageFacts:
        """Return the same with the events behind a number alone: the others are known to who asks."""
        return dataclasses.replace(self, events=self.events.after(number))

    def to_json(self) -> dict[str, Any]:
        return {
            "report": self.report.to_json(),
            "progress": self.progress.to_json(),
            "driven": self.driven,
            "began_s": self.began_s,
            "trouble": self.trouble,
            "history": dataclasses.asdict(self.history),
            "events": dataclasses.asdict(self.events),
        }


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
            progress=progress if driven else at_rest(progress),
            driven=driven,
            began_s=clock.start_s - read_ahead(db),
            history=read_history(db, root, clock),
            events=_read_events(db, clock),
        )


def _read_events(db: sqlite3.Connection, clock: RunClock) -> Events:
    rows = db.execute("SELECT rowid, at_s, topic, text FROM events ORDER BY rowid DESC LIMIT ?", (EVENTS,)).fetchall()[
        ::-1
    ]
    ahead_s = read_ahead(db)
    number = db.execute("SELECT count(*) FROM events").fetchone()[0]
    return Events(
        last=rows[-1][0] if rows else 0,
        left_out=number - len(rows),
        number=[row[0] for row in rows],
        at_s=[round(clock.at(row[1]), 3) for row in rows],
        time_s=[round(row[1] - ahead_s, 3) for row in rows],
        topic=[row[2] for row in rows],
        text=[row[3] for row in rows],
    )
