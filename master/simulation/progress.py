"""What a person sees of a simulation while it goes on: a line on the terminal, and epochs as they end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from gridml.errors import LedgerError
from master.store.ledger import last_sign
from master.store.reader import connect
from master.views.progress import read
from master.views.render import duration
from master.views.report import read_clock

EVERY_S = 0.5  # of real time
SAID = ("epoch", "metrics", "resumed", "warning", "failure")
Told = Callable[[str, str], None]


@contextlib.contextmanager
def watched(root: Path, *, quiet: bool) -> Iterator[Told]:
    """What a simulation in `root` is to tell its events to. Evictions are counted, not said."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda kind, text: None if quiet or kind not in SAID else console.print(f"{kind}: {text}")
        return
    looked_s = time.monotonic()
    with console.status("simulating") as status:

        def told(kind: str, text: str) -> None:
            nonlocal looked_s
            if kind in SAID:
                console.print(f"{kind}: {text}")
            if time.monotonic() - looked_s >= EVERY_S:
                status.update(_standing(root))
                looked_s = time.monotonic()

        yield told


def _standing(root: Path) -> str:
    """How far the run is, in one line."""
    try:
        connection = connect(root)
    except LedgerError:
        return "simulating"
    try:
        at_s = last_sign(connection)
        found, began_s = read(connection, at_s), read_clock(connection, root, at_s).start_s
    finally:
        connection.close()
    return f"simulated {duration(at_s - began_s)}: {found.all_credited:,} of {found.total or 0:,} vertices credited"
