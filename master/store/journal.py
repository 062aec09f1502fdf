"""The journal of a run while it goes on: a line for each event in events.log, and for those who follow it.

Durations go by the master's own clock, which cannot be set; other processes read the wall clock, so the offset
between the two is kept. `mark_cancelled` cancels a run that no master drives.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from gridml.protocol.foreign import printable
from master.store.ledger import Ledger
from master.store.rundir import EventFacts, RunDirectory, RunStatus

WARNING = "warning"  # a topic
WARNINGS = "warnings"  # the fact of the run that has the last standing ones: they are read often, and events are many
MAX_WARNINGS = 3
Report = Callable[[str, str, EventFacts], None]  # is called with (topic, text, facts) of each event


class Events:
    """Records the events of one master's run; made once and given to all parts that record any."""

    def __init__(self, ledger: Ledger, path: Path, report: Report, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._path = path
        self._report = report
        self._clock = clock
        self._file: TextIO | None = None  # opened for the first line

    def record(
        self, topic: str, facts: EventFacts, text: str, *, why: str = "", quiet: bool = False, standing: bool = False
    ) -> None:
        """Record an event in the open transaction, or in one of its own, and report it once that is committed: what a
        transaction that fails says has not happened.

        The ledger alone has the reason `why`, and what is `quiet`. `gridml status` shows a `standing` warning until
        others have come: none that a worker causes, which could send any number of them. A text names no path of the
        run where it can do without: the same seed gives the same ledger wherever it lies.
        """
        ledger, now = self._ledger, self._clock()
        with contextlib.nullcontext() if ledger.in_transaction else ledger.transaction():
            ledger.event(now, topic, f"{text}. {why}" if why else text, facts)
            if standing:
                others = [warning for warning in ledger.get(WARNINGS, []) if warning[1] != text]
                ledger.set(WARNINGS, [*others, [now, text]][-MAX_WARNINGS:])
            if not quiet:
                ledger.after_commit(partial(self._notify, topic, facts, text))

    def _notify(self, topic: str, facts: EventFacts, text: str) -> None:
        """Write a line and report it. Only an event begins at a line's begin."""
        if self._file is None:
            self._file = open(  # noqa: SIM115
                self._path, "a", buffering=1, encoding="utf-8", errors="backslashreplace", opener=_at_once
            )
        lines = printable(text).replace("\n", "\n    ")
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {topic:9} {lines}\n")
        self._report(topic, text, facts)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk was told of when it was written to
                self._file.close()


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for somebody to read it, as a FIFO would."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


AHEAD = "clock_ahead_s"  # a fact of the run: seconds by which the ledger's times are ahead of the wall's clock
NOTICED_S = 1.0  # a clock that is not set strays by less between two looks


def set_by(ahead_s: float, before_s: float) -> tuple[float, str]:
    """Return (seconds by which the wall's clock was set forward, 0 where it was not; that in words).

    `ahead_s` is how far the master's own clock is ahead of it, `before_s` how far it was at the last look.
    """
    forward_s = before_s - ahead_s
    if abs(forward_s) < NOTICED_S:
        return 0.0, "it was not set"
    if forward_s < 0:
        return forward_s, f"this machine's clock was set back by {-forward_s:,.0f} s; durations are not"
    return forward_s, f"this machine's clock was set forward by {forward_s:,.0f} s, or it slept; durations are not"


class WallClock:
    """Tells the ledger how far its times are from the wall's clock, so that whoever reads it knows what time it is
    there."""

    def __init__(self, wall: Callable[[], float], ledger: Ledger, events: Events) -> None:
        self._wall = wall
        self._ledger = ledger
        self._events = events
        self._ahead_s: float | None = None  # of this master's last look

    def look(self, now: float) -> None:
        """Write down how far the wall's clock is away where that has changed."""
        ahead_s = now - self._wall()
        first = self._ahead_s is None  # since the master before, or since the run was made
        forward_s, what = set_by(ahead_s, self._ledger.get(AHEAD, 0.0) if self._ahead_s is None else self._ahead_s)
        if forward_s:
            with self._ledger.transaction():
                self._ledger.set(AHEAD, ahead_s)
                if not first:
                    self._events.record("warning", {"forward_s": forward_s}, what, standing=True)
        if first or forward_s:
            self._ahead_s = ahead_s


def mark_cancelled(directory: RunDirectory) -> None:
    """Leave word that a run which was not over is cancelled. The caller holds the master's lock."""
    with contextlib.closing(Ledger.of(directory)) as ledger, ledger.transaction():
        if ledger.get("status") in (RunStatus.SUBMITTED, RunStatus.RUNNING):
            ledger.set("status", RunStatus.CANCELLED)
            ledger.set("stopped_because", f"{directory.root} was cancelled while no master drove it.")
