"""Show a simulation while it goes on: a line on the terminal, and epochs as they end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from gridml.errors import LedgerError
from master.store.event_facts import EventFacts
from master.store.journal import Report
from master.store.ledger_file import last_sign
from master.store.reader import connect
from master.store.run_facts import read_clock
from master.views.console import PlainConsole
from master.views.progress import read_progress
from master.views.render import duration

EVERY_S = 0.5  # of real time
SHOWN = ("training", "epoch", "metrics", "resumed", "warning", "failure")  # topics; evictions are counted, not shown


@contextlib.contextmanager
def status_line(root: Path, *, quiet: bool) -> Iterator[Report]:
    """Yield what a simulation in `root` is to report its events to."""
    console = PlainConsole(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda topic, text, facts: None if quiet or topic not in SHOWN else console.print(f"{topic}: {text}")
        return
    looked_s = time.monotonic()
    with console.status("simulating") as status:

        def report(topic: str, text: str, facts: EventFacts) -> None:
            nonlocal looked_s
            if topic in SHOWN:
                console.print(f"{topic}: {text}")
            if time.monotonic() - looked_s >= EVERY_S:
                status.update(_line(root))
                looked_s = time.monotonic()

        yield report


def _line(root: Path) -> str:
    """Return how far the run is, in one line."""
    try:
        connection = connect(root)
    except LedgerError:
        return "simulating"
    try:
        at_s = last_sign(connection)
        progress, began_s = read_progress(connection, at_s), read_clock(connection, root, at_s).start_s
    finally:
        connection.close()
    simulated = duration(at_s - began_s)
    return f"simulated {simulated}: {progress.all_credited:,} of {progress.total or 0:,} vertices credited"
