"""The speed of a run's workers, from its ledger."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def credited_rate(run: Path) -> float:
    """Return the vertices per second that a finished run was credited between its first credit and its last.

    Raises RuntimeError if it was credited fewer than twice.
    """
    with sqlite3.connect(f"file:{run / 'ledger.db'}?mode=ro", uri=True) as ledger:
        credits = ledger.execute("SELECT at_s, stop - start FROM credits ORDER BY at_s, rowid").fetchall()
    if len(credits) < 2 or credits[-1][0] == credits[0][0]:
        raise RuntimeError(f"the run was credited in {len(credits)} pushes; a rate takes two. Let it train for longer.")
    return float(sum(count for at, count in credits if at > credits[0][0]) / (credits[-1][0] - credits[0][0]))
