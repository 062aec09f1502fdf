"""What a person hears of a run while it goes on: a line each in events.log, and whoever follows it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from gridml.protocol.text import printable
from master.store.event_facts import NO_FACTS, EventFacts
from master.store.ledger import Ledger

WARNING, WARNINGS = "warning", "warnings"  # a topic, and the fact of the run that has the last of it
MOST_WARNINGS = 3
Report = Callable[[str, str, EventFacts], None]  # (topic, text, facts) of what a person should hear


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for somebody to read it, as a FIFO would."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


class Journal:
    """Writes events into `ledger` and into the file `path`, and passes them on to `report`."""

    def __init__(self, ledger: Ledger, path: Path, report: Report) -> None:
        self._ledger = ledger
        self._file = open(  # noqa: SIM115
            path, "a", buffering=1, encoding="utf-8", errors="backslashreplace", opener=_at_once
        )
        self._report = report

    def event(self, now: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        """Write an event down. Must be called inside the ledger's transaction."""
        self._ledger.event(now, topic, text, facts)
        if topic == WARNING:  # the last ones are read often, and events are many
            others = [warning for warning in self._ledger.get(WARNINGS, []) if warning[1] != text]
            self._ledger.set(WARNINGS, [*others, [now, text]][-MOST_WARNINGS:])
        self.tell(topic, text, facts)

    def tell(self, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        """Tell of what the ledger has already, or need not have. In the file only an event begins at a line's begin."""
        lines = printable(text).replace("\n", "\n    ")
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {topic:9} {lines}\n")
        self._report(topic, text, facts)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was told of when it was written to
            self._file.close()
