"""Measure the traffic to workers: chunks that carry rows, chunks whose rows workers keep, and chunks that name rows of
a file.

200,000 rows of 1 KB, three epochs, two workers on this machine. Workers that keep rows have a folder each, like on two
machines, or share one.

    python -m benchmarks.kept_chunks [REPEATS]
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.kept_rows import DOWN, ROWS, asked, begun, environment, played
from benchmarks.table import Cell, write

WAYS = ("carried", "kept, a folder each", "kept, one folder", "read from the file")


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=sized(3, 1))
    outcomes = played(sized(WAYS, (WAYS[0], WAYS[2])), play, repeats)
    carried = statistics.median(megabytes for megabytes, _ in outcomes["carried"])
    rows: list[dict[str, Cell]] = []
    for way, runs in outcomes.items():
        megabytes = statistics.median(each for each, _ in runs)
        seconds = statistics.median(each for _, each in runs)
        share = round(megabytes / carried, 3)
        rows.append({"rows": way, "MB down": round(megabytes, 1), "of carried": share, "run s": round(seconds, 1)})
    write(
        "kept_chunks",
        "Traffic by kind of chunk: with all rows, with rows that workers keep, with numbers of rows in a file",
        rows,
        [
            f"{ROWS:,} rows of 1 KB (205 MB), three epochs, each in its own order, two local workers; runs: {repeats}",
            "MB down: answers and chunks, from the ledger; run s: of the command, boots included",
        ],
    )


def play(way: str, folder: Path) -> tuple[float, float]:
    """Play one run. Return (MB sent to workers, seconds)."""
    root = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    caches = {"kept, one folder": str(root / "kept"), "kept, a folder each": str(root / "kept-{name}")}
    given = environment(folder, caches.get(way), shared=way == "read from the file")
    began = time.monotonic()
    subprocess.run(begun(root / "run"), env=given, stdout=subprocess.DEVNULL, check=True)
    seconds = time.monotonic() - began
    return asked(root / "run", DOWN) / 1e6, seconds


if __name__ == "__main__":
    main()
