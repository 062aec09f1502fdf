"""The journal of a live run: records events in the ledger and in events.log, and reports them to a callback.

It also records the offset between two clocks. The master measures durations with its own clock, which cannot be set.
Other processes read the wall clock, so they need its offset from the master's clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from gridml.protocol.foreign import MAX_MESSAGE_CHARS, one_line
from master.store.ledger import Ledger
from master.store.rundir import EventFacts, RunDirectory, RunStatus

WARNING = "warning"  # a topic
# Key of the newest standing warnings in the ledger's table `run`. They are stored there because they are read often,
# and the table of events is long.
WARNINGS = "warnings"
MAX_WARNINGS = 3  # standing warnings that are kept
Report = Callable[[str, str, EventFacts], None]  # called with (topic, text, facts) of each event


class Events:
    """Recorder of a run's events, shared by all parts of the master that record events."""

    def __init__(self, ledger: Ledger, path: Path, report: Report, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._path = path
        self._report = report
        self._clock = clock
        self._file: TextIO | None = None  # opened for the first line

    def record(
        self, topic: str, facts: EventFacts, text: str, *, why: str = "", quiet: bool = False, standing: bool = False
    ) -> None:
        """Record an event in the open transaction, or in a new one if none is open, and report it after the commit.

        The reason `why` is recorded only in the ledger. A `quiet` event is recorded only in the ledger, too. The newest
        `standing` warnings are shown by `gridml status`. An event that a worker can cause must not be standing, because
        a worker can cause any number of such events.
        """
        # Texts contain no paths of the run, so that the same seed gives the same ledger in any directory.
        ledger, now = self._ledger, self._clock()
        with contextlib.nullcontext() if ledger.in_transaction else ledger.transaction():
            ledger.event(now, topic, f"{text}. {why}" if why else text, facts)
            if standing:
                others = [warning for warning in ledger.get(WARNINGS, []) if warning[1] != text]
                ledger.set(WARNINGS, [*others, [now, text]][-MAX_WARNINGS:])
            if not quiet:
                # Only after the commit, because an event of a transaction that fails has not happened.
                ledger.after_commit(partial(self._notify, topic, facts, text))

    def _notify(self, topic: str, facts: EventFacts, text: str) -> None:
        """Append the event to events.log and report it."""
        if self._file is None:
            self._file = open(  # noqa: SIM115
                self._path, "a", buffering=1, encoding="utf-8", errors="backslashreplace", opener=_open_without_blocking
            )
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {topic:9} {one_line(text, MAX_MESSAGE_CHARS)}\n")
        self._report(topic, text, facts)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk was already reported by the write
                self._file.close()


def _open_without_blocking(path: str, flags: int) -> int:
    """Open a file without blocking: otherwise opening a FIFO would wait for a reader."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


AHEAD = "clock_ahead_s"  # a fact of the run: seconds by which the ledger's times are ahead of the wall clock
MIN_STEP_S = 1.0  # a smaller difference between two readings is drift: the clock was not set


def set_by(ahead_s: float, before_s: float) -> tuple[float, str]:
    """Return (seconds by which the wall clock was set forward, a description of the step).

    The seconds are negative if the clock was set back, and 0 if it was not set. The arguments are the seconds by which
    the master's own clock is ahead of the wall clock: `ahead_s` now, `before_s` at the previous reading.
    """
    forward_s = before_s - ahead_s
    if abs(forward_s) < MIN_STEP_S:
        return 0.0, "it was not set"
    if forward_s < 0:
        return forward_s, f"this machine's clock was set back by {-forward_s:,.0f} s; durations are right"
    return forward_s, f"this machine's clock was set forward by {forward_s:,.0f} s, or it slept; durations are right"


class WallClock:
    """Recorder of the offset between the ledger's times and the wall clock, with which readers convert times."""

    def __init__(self, wall: Callable[[], float], ledger: Ledger, events: Events) -> None:
        self._wall = wall
        self._ledger = ledger
        self._events = events
        self._ahead_s: float | None = None  # at this master's first update, or at the last step of the wall clock

    def update(self, now: float) -> None:
        """Record the offset if it has changed by at least `MIN_STEP_S`."""
        ahead_s = now - self._wall()
        first = self._ahead_s is None  # then the last recorded offset is compared; without one, 0
        forward_s, what = set_by(ahead_s, self._ledger.get(AHEAD, 0.0) if self._ahead_s is None else self._ahead_s)
        if forward_s:
            with self._ledger.transaction():
                self._ledger.set(AHEAD, ahead_s)
                if not first:
                    self._events.record("warning", {"forward_s": forward_s}, what, standing=True)
        if first or forward_s:
            self._ahead_s = ahead_s


def mark_cancelled(directory: RunDirectory) -> None:
    """Mark a run as cancelled, unless it has already ended. The caller holds the master's lock."""
    with contextlib.closing(Ledger.of(directory)) as ledger, ledger.transaction():
        if ledger.get("status") in (RunStatus.SUBMITTED, RunStatus.RUNNING):
            ledger.set("status", RunStatus.CANCELLED)
            ledger.set("stopped_because", f"{directory.root} was cancelled while no master drove it.")
