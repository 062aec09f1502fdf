"""Live views of a run: a panel on a terminal, plain lines elsewhere, JSON lines for programs.

Views are updated at most twice a second, from the run's own loop; they have no thread that reads the ledger.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gridml.errors import LedgerError
from gridml.protocol.foreign import one_line
from master.store.reader import connect, read_ahead
from master.store.rundir import NO_FACTS, EventFacts, RunStatus, bounded
from master.views.console import json_text
from master.views.progress import RunProgress, read_progress
from master.views.render import duration

STYLES = {
    **dict.fromkeys(("started", "training", "averaged", "resumed", "running"), "cyan"),
    **dict.fromkeys(("epoch", "metrics", "best", "stopping", "finished"), "green"),
}
MAX_NAMED = 3  # maximum number of avoided machines, or of held workers, named in one line
WIDTH = 100  # columns of the panel, if the terminal is as wide
BAD = "yellow"  # style of topics that are not in STYLES: something was lost or failed


class LiveView(ABC):
    """Shows events as they happen, and the progress at intervals."""

    every_s: float  #: seconds between two calls of `progress`

    @abstractmethod
    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        """Show an event at `at_s` (seconds of time.time()): its topic, such as "evicted", its text, and as `facts` the
        numbers and names in that text."""

    @abstractmethod
    def progress(self, now: float, progress: RunProgress) -> None:
        """Show the progress of the run at `now` (seconds of time.time())."""

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *error: object) -> None:
        return None


@final
class Screen(LiveView):
    """A panel that stays at the bottom of a terminal while events scroll above it."""

    every_s = 0.5

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        style = STYLES.get(topic, BAD)
        self._console.print(Text.assemble((clock_time(at_s), "dim"), "  ", (f"{topic:9}", style), " ", text))

    def progress(self, now: float, progress: RunProgress) -> None:
        self._live.update(panel(self._title, progress), refresh=True)


@final
class Lines(LiveView):
    """One plain line per event, and one for the progress every ten seconds."""

    every_s = 10.0

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        print(one_line(f"{clock_time(at_s)}  {topic:9} {text}"), file=self._out, flush=True)

    def progress(self, now: float, progress: RunProgress) -> None:
        print(f"{clock_time(now)}  {'progress':9} {progress_line(progress)}", file=self._out, flush=True)


@final
class EventLines(LiveView):
    """One JSON object per line. For an event: {"at_s", "topic", "text", "facts"} (docs/events.md). For progress:
    `topic` is "progress", and the other fields are those of RunProgress."""

    every_s = 10.0

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        self._write(at_s, topic, {"text": text, "facts": bounded(facts)})

    def progress(self, now: float, progress: RunProgress) -> None:
        self._write(now, "progress", progress.to_json())

    def _write(self, at_s: float, topic: str, content: dict[str, Any]) -> None:
        print(json_text(json_line(at_s, topic, content)), file=self._out, flush=True)


def json_line(at_s: float, topic: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return one object of `--json` output. `kind` is the deprecated name of `topic`, kept for one more release."""
    return {"at_s": at_s, "topic": topic, "kind": topic, **content}


class Follower:
    """Reads a run's progress at a view's interval and passes it on, together with all events.

    `report` and `tick` are the callbacks of the run's Environment.
    """

    def __init__(self, root: Path, view: LiveView, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._view = view
        self._clock = clock
        self._ledger: sqlite3.Connection | None = (
            None  # opened at the first reading, because the run need not exist before
        )
        # Time of the last reading; at first set so that the next reading is due within a second.
        self._looked_s = clock() + min(1.0, view.every_s) - view.every_s
        self.last: RunProgress | None = None

    def report(self, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        self._view.event(self._clock(), topic, text, facts)

    def tick(self) -> None:
        now = self._clock()
        if not self._looked_s <= now < self._looked_s + self._view.every_s:  # the clock may have been set back
            self._looked_s = now
            # A view must not end the run; if the ledger is damaged, the master itself reports it.
            with contextlib.suppress(sqlite3.Error, LedgerError):
                if self._ledger is None:
                    self._ledger = connect(self._root)
                self.last = read_progress(self._ledger, now + read_ahead(self._ledger))
                self._view.progress(now, self.last)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *error: object) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None


def panel(title: str, progress: RunProgress) -> RenderableType:
    """Return the progress as a panel. Its size is constant, so that the panel does not jump."""
    bars = Table.grid(padding=(0, 2), expand=True)
    bars.add_column(no_wrap=True)
    bars.add_column(ratio=1)  # the bar takes the width that the other columns leave
    bars.add_column(justify="right", no_wrap=True)
    bars.add_column(justify="right", no_wrap=True)
    of = f" of {progress.epochs}" if progress.epochs else ""
    bars.add_row(f"epoch {progress.epoch}{of}", *_bar(progress.credited, progress.vertices))
    if progress.total:
        bars.add_row("run", *_bar(progress.all_credited, progress.total))
    rows = [_workers(progress), [*_speed(progress), *_metrics(progress)]]
    facts = [
        Text("   ").join(Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in row) for row in rows
    ]
    # Always two rows, even if empty: a panel that grows moves everything above it.
    return Panel(Group(bars, *facts), title=Text(title, "bold"), title_align="left", width=WIDTH)


def _bar(part: int, whole: int) -> tuple[RenderableType, str, str]:
    share = part / whole if whole else 0.0
    bar = ProgressBar(total=max(1, whole), completed=part)
    return bar, f"{part:,} of {whole:,}", f"{share:.0%}"


def _workers(progress: RunProgress) -> list[tuple[str, str]]:
    waiting = f" (+{progress.queued} waiting)" if progress.queued else ""
    held = f", {progress.held} held" if progress.held else ""
    avoided = f", {len(progress.avoided)} avoided" if progress.avoided else ""
    avoided += f", {len(progress.quarantined)} in quarantine" if progress.quarantined else ""
    aim = progress.wanted if progress.asked is None else progress.asked
    short = progress.status is RunStatus.RUNNING and aim not in (None, progress.alive)
    of = f" of {aim}" if short else ""
    facts = [("workers", f"{progress.alive}{of} alive{waiting}{held}, {progress.lost} lost{avoided}")]
    if progress.avoided_machines:
        more = ", …" if len(progress.avoided_machines) > MAX_NAMED else ""
        facts.append(("avoided", ", ".join(each.machine for each in progress.avoided_machines[:MAX_NAMED]) + more))
    if progress.staleness is not None:
        facts.append(("staleness", f"{progress.staleness:.1f}"))
    if progress.goodput is not None:
        facts.append(("goodput", f"{progress.goodput:.0%}"))
    if progress.worth is not None:
        facts.append(("worth", f"{progress.worth:.2g} workers"))
    return facts


def _speed(progress: RunProgress) -> list[tuple[str, str]]:
    if progress.no_headway is not None:
        return [("no headway for", duration(progress.no_headway.seconds)), ("cause", progress.no_headway.cause)]
    if not progress.all_credited:
        return [("nothing is credited yet", "")]
    facts = []
    if progress.per_second is not None:
        facts.append(("vertices/s", f"{progress.per_second:,.0f}"))
    if progress.seconds_left is not None:
        facts.append(("left", duration(progress.seconds_left)))
    return facts


def _metrics(progress: RunProgress) -> list[tuple[str, str]]:
    """Return the recent means that f logged and the last numeric metrics; lists are shown in the report only."""
    numbers = [(name, value) for name, value in progress.metrics.items() if isinstance(value, int | float)]
    shown = [(name, f"{value:.4g} (epoch {progress.evaluated})") for name, value in numbers]
    return [*((name, f"{value:.4g} lately") for name, value in progress.logged.items()), *shown]


def progress_line(progress: RunProgress) -> str:
    """Return the progress as one line of text."""
    of = f" of {progress.epochs}" if progress.epochs else ""
    parts = [f"epoch {progress.epoch}{of}: {progress.credited:,} of {progress.vertices:,}"]
    parts += [
        f"{name} {value}".rstrip() for name, value in (*_workers(progress), *_speed(progress), *_metrics(progress))
    ]
    return one_line(", ".join(parts))


def clock_time(at_s: float) -> str:
    """Return a time (seconds of time.time()) as local HH:MM:SS."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))
