"""What travels to workers: chunks that carry rows, chunks whose rows workers keep, and chunks that name rows of a file.

200,000 rows of 1 KB, three epochs, two workers on this machine. Of rows that are kept each worker has a folder of its
own, as on two machines, or both have one.

    python -m benchmarks.kept_chunks [REPEATS]
"""

from __future__ import annotations

import os
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
WAYS = ("carried", "kept, a folder each", "kept, one folder", "read from the file")


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=3)
    played: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="kept-chunks-") as folder:
        values = open_memmap(Path(folder) / "rows.npy", "w+", np.float32, (ROWS, WIDTH))
        values[:] = np.random.default_rng(0).integers(0, 9, (ROWS, WIDTH))
        for _ in range(repeats):
            for way in WAYS:
                played[way].append(play(way, Path(folder)))
                print(way, played[way][-1], flush=True)
    carried = statistics.median(megabytes for megabytes, _ in played["carried"])
    rows: list[dict[str, Cell]] = []
    for way, runs in played.items():
        megabytes = statistics.median(each for each, _ in runs)
        seconds = statistics.median(each for _, each in runs)
        share = round(megabytes / carried, 3)
        rows.append({"rows": way, "MB down": round(megabytes, 1), "of carried": share, "run s": round(seconds, 1)})
    write(
        "kept_chunks",
        "Chunks that carry rows, whose rows workers keep, and that name rows of a file",
        rows,
        [
            f"{ROWS:,} rows of 1 KB (205 MB), three epochs in orders of their own, two local workers; runs: {repeats}",
            "MB down: answers and chunks, as the ledger has them; run s: of the command, boots included",
        ],
    )


def play(way: str, folder: Path) -> tuple[float, float]:
    """One run: (MB that travelled to workers, seconds)."""
    root = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    environment = {**os.environ, "ROWS": str(folder / "rows.npy"), "SHARED": "1" if "file" in way else "0"}
    environment.pop("GRIDML_WORKER_CACHE", None)
    if way == "kept, one folder":
        environment["GRIDML_WORKER_CACHE"] = str(root / "kept")
    elif way == "kept, a folder each":
        environment["GRIDML_WORKER_CACHE"] = str(root / "kept-{name}")
    command = [
        str(Path(sys.executable).with_name("gridml")),
        "run",
        str(PROGRAM),
        "--workers",
        "2",
        "--run-dir",
        str(root / "run"),
    ]
    began = time.monotonic()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds = time.monotonic() - began
    with sqlite3.connect(f"file:{root / 'run' / 'ledger.db'}?mode=ro", uri=True) as ledger:
        (nbytes,) = ledger.execute("SELECT sum(bytes_down) FROM workers").fetchone()
    return nbytes / 1e6, seconds


if __name__ == "__main__":
    main()
