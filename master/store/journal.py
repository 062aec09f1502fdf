"""Events: what happens in a run, recorded in its ledger, in events.log, and for whoever follows it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from gridml.protocol.text import printable
from master.store.event_facts import EventFacts
from master.store.ledger import Ledger

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
