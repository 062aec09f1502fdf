"""What is sent again to workers that keep rows when their master was killed: as it was when the next master knew
nothing of what they keep, and as it is.

200,000 rows of 1 KB, three epochs, two workers on this machine that share a folder. The master is killed when the first
epoch is credited, and the run is resumed; for the first way what the master kept for its next (`carried/`) is removed.

    python -m benchmarks.kept_after_restart [REPEATS]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from benchmarks.arguments import numbers
from benchmarks.table import Cell, write

PROGRAM = Path(__file__).parent / "programs" / "kept_rows.py"
ROWS, WIDTH = 200_000, 256  # float32
LIMIT_S = 300.0
WAYS = ("nothing", "what workers keep")


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=1)
    played: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="kept-after-restart-") as folder:
        values = open_memmap(Path(folder) / "rows.npy", "w+", np.float32, (ROWS, WIDTH))
        values[:] = np.random.default_rng(0).integers(0, 9, (ROWS, WIDTH))
        for _ in range(repeats):
            for way in WAYS:
                played[way].append(play(way, Path(folder)))
                print(way, played[way][-1], flush=True)
    rows: list[dict[str, Cell]] = [
        {
            "the next master knows": way,
            "MB down before": round(statistics.median(before for before, _ in runs), 1),
            "MB down after": round(statistics.median(after for _, after in runs), 1),
        }
        for way, runs in played.items()
    ]
    write(
        "kept_after_restart",
        "What workers that keep rows are sent after their master was killed",
        rows,
        [
            f"{ROWS:,} rows of 1 KB (205 MB), three epochs in orders of their own, two local workers that keep what"
            f" they are sent in one folder; killed once the first epoch is credited, then resumed; runs: {repeats}",
            "MB down: answers and chunks, as the ledger has them; every row was credited three times (checked)",
        ],
    )


def play(way: str, folder: Path) -> tuple[float, float]:
    """One run: MB that travelled to workers until the master was killed, and after that."""
    root = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    kept = str(root / "kept")
    environment = {**os.environ, "ROWS": str(folder / "rows.npy"), "SHARED": "0", "GRIDML_WORKER_CACHE": kept}
    gridml = str(Path(sys.executable).with_name("gridml"))
    run = root / "run"
    master = subprocess.Popen(
        [gridml, "run", str(PROGRAM), "--workers", "2", "--run-dir", str(run)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + LIMIT_S
        while asked(run, "SELECT count(*) FROM epochs WHERE closed_s IS NOT NULL") == 0:
            if master.poll() is not None or time.monotonic() > until:
                sys.exit(f"the run in {run} credited no epoch")
            time.sleep(0.05)
    finally:
        master.kill()
        master.wait()
    before = asked(run, "SELECT sum(bytes_down) FROM workers")
    if way == "nothing":
        shutil.rmtree(run / "carried")
    subprocess.run([gridml, "resume", str(run)], env=environment, stdout=subprocess.DEVNULL, check=True)
    if (credited := asked(run, "SELECT sum(stop - start) FROM credits")) != 3 * ROWS:
        sys.exit(f"{credited:,} rows were credited, expected {3 * ROWS:,}")
    return before / 1e6, (asked(run, "SELECT sum(bytes_down) FROM workers") - before) / 1e6


def asked(run: Path, query: str) -> float:
    """One number of the ledger, 0 as long as there is none."""
    with contextlib.suppress(sqlite3.OperationalError):  # before the run has made it
        ledger = sqlite3.connect(f"file:{run / 'ledger.db'}?mode=ro", uri=True)
        with contextlib.closing(ledger):
            return ledger.execute(query).fetchone()[0] or 0
    return 0


if __name__ == "__main__":
    main()
