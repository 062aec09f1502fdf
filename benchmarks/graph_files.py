"""Measure the memory and the time of `gridml.graph_from` on files of growing size: memory must not grow with the edges.

Each reading has a process of its own. Its peak is VmHWM in /proc/self/status, less that of a process that has read a
tiny file, in which all kernels are loaded. The edges of a file are in random order, so that they must be sorted; users
and items are named by texts. `whole` reads the file as `gridml place` does, without values: into memory.

    python -m benchmarks.graph_files
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.arguments import numbers, sized, smallest
from benchmarks.table import Cell, write

EDGES = sized((1_000_000, 8_000_000, 64_000_000), (2_000, 8_000))
USERS, ITEMS = sized((100_000, 20_000), (100, 20))
AT_ONCE = 500_000  # edges of a file that are written together
MEGABYTE = 1e6
MAX_GROWN = 1.5  # times the peak of the smallest file that the largest may take


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory(prefix="graph-files-") as folder:
        tiny = write_edges(Path(folder) / "tiny.tsv", 100)
        baseline = {how: min(read(tiny, how)[0] for _ in range(3)) for how in ("graph_from", "whole")}
        for edges in EDGES:
            path = write_edges(Path(folder) / f"{edges}.tsv", edges)
            size = path.stat().st_size
            for how in ("graph_from", "whole"):
                peak, cpu_s = read(path, how)
                rows.append(
                    {
                        "how": how,
                        "edges": edges,
                        "file MB": round(size / MEGABYTE, 1),
                        "arrays of edges MB": round(edges * 8 / MEGABYTE, 1),
                        "peak MB": round((peak - baseline[how]) / MEGABYTE, 1),
                        "file / peak": round(size / (peak - baseline[how]), 2),
                        "CPU-s": round(cpu_s, 2),
                        "M edges per CPU-s": round(edges / cpu_s / 1e6, 2),
                    }
                )
            path.unlink()
    write(
        "graph_files",
        f"Ratings of {USERS:,} users and {ITEMS:,} items, read from a file",
        rows,
        [
            f"peak: over {', '.join(f'{mb / MEGABYTE:.0f} MB ({how})' for how, mb in baseline.items())}, the peak of a "
            f"process that read 100 edges; one reading each",
            "whole: as gridml place reads, into memory and without the values; it takes whole numbers only, so its "
            "files have these in place of texts",
            f"graph_from's peak may grow by {MAX_GROWN:g} times from the smallest file to the largest",
        ],
    )
    peaks = [float(str(row["peak MB"])) for row in rows if row["how"] == "graph_from"]
    if not smallest() and peaks[-1] > MAX_GROWN * peaks[0]:
        raise SystemExit(f"memory grows with the file: {peaks} MB")


def write_edges(path: Path, edges: int) -> Path:
    """Write ratings by users and of items drawn at random, and the same with numbers for names beside it."""
    rng = np.random.default_rng(0)
    with path.open("w") as named, path.with_suffix(".edges").open("w") as numbered:
        for start in range(0, edges, AT_ONCE):
            n = min(AT_ONCE, edges - start)
            user, item, stars = rng.integers(0, USERS, n), rng.integers(0, ITEMS, n), rng.integers(1, 11, n) / 2
            rows = list(zip(user.tolist(), item.tolist(), stars.tolist(), strict=True))
            named.writelines(f"u{u}\ti{i}\t{s}\n" for u, i, s in rows)
            numbered.writelines(f"{u}\t{i}\t{s}\n" for u, i, s in rows)
    return path


READ = """
import json, sys, tempfile, time
import gridml
from gridml.placement.files import registry
from pathlib import Path

path, how = Path(sys.argv[1]), sys.argv[2]
with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    used = time.process_time()
    if how == "graph_from":
        edges = len(gridml.graph_from(path, folder=folder).targets)
    else:
        edges = registry.read_numbered(path.with_suffix(".edges")).graph.edges
    used = time.process_time() - used
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(json.dumps([int(peak) * 1024, used]))
"""


def read(path: Path, how: str) -> tuple[int, float]:
    """Read a file in a process of its own. Return (peak of its memory in bytes, CPU seconds of the reading)."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), how], capture_output=True, text=True, check=True, env={**os.environ}
    )
    peak, used = json.loads(done.stdout)
    return peak, used


if __name__ == "__main__":
    main()
