"""Measure the rows that are sent again to workers that keep rows after their master was killed: without and with the
next master's knowledge of what they keep.

200,000 rows of 1 KB, three epochs, two workers on this machine that share a folder. The master is killed when the
first epoch is credited, and the run is resumed. In the first variant the state for the next master (`carried/`) is
removed.

    python -m benchmarks.kept_after_restart [REPEATS]
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import numbers
from benchmarks.kept_rows import DOWN, GRIDML, ROWS, asked, begun, environment, played
from benchmarks.table import Cell, write

LIMIT_S = 300.0
WAYS = ("nothing", "what workers keep")


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=1)
    rows: list[dict[str, Cell]] = [
        {
            "the next master knows": way,
            "MB down before": round(statistics.median(before for before, _ in runs), 1),
            "MB down after": round(statistics.median(after for _, after in runs), 1),
        }
        for way, runs in played(WAYS, play, repeats).items()
    ]
    write(
        "kept_after_restart",
        "Rows sent again to workers that keep rows, after their master was killed",
        rows,
        [
            f"{ROWS:,} rows of 1 KB (205 MB), three epochs, each in its own order, two local workers that keep rows in"
            f" one folder; killed once the first epoch is credited, then resumed; runs: {repeats}",
            "MB down: answers and chunks, from the ledger; every row was credited three times (checked)",
        ],
    )


def play(way: str, folder: Path) -> tuple[float, float]:
    """Play one run. Return the MB sent to workers until the master was killed, and afterwards."""
    root = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    given, run = environment(folder, str(root / "kept"), shared=False), root / "run"
    master = subprocess.Popen(begun(run), env=given, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT_S
        while asked(run, "SELECT count(*) FROM epochs WHERE closed_s IS NOT NULL") == 0:
            if master.poll() is not None or time.monotonic() > until:
                sys.exit(f"the run in {run} credited no epoch")
            time.sleep(0.05)
    finally:
        master.kill()
        master.wait()
    before = asked(run, DOWN)
    if way == "nothing":
        shutil.rmtree(run / "carried")
    subprocess.run([GRIDML, "resume", str(run)], env=given, stdout=subprocess.DEVNULL, check=True)
    if (credited := asked(run, "SELECT sum(stop - start) FROM credits")) != 3 * ROWS:
        sys.exit(f"{credited:,} rows were credited, expected {3 * ROWS:,}")
    return before / 1e6, (asked(run, DOWN) - before) / 1e6


if __name__ == "__main__":
    main()
