"""Measure memory while chunks are cut from a large data set: it must stay at the size of a few chunks.

The data set is a memory-mapped file. The whole epoch is cut and encoded, one chunk after another, like in the master.
Only anonymous memory counts (`Anonymous` in /proc/self/smaps_rollup): pages of the file belong to the page cache,
which the kernel reclaims on demand.

    python -m benchmarks.memory
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

import gridml
from benchmarks.arguments import numbers, sized, smallest
from benchmarks.table import write
from gridml.model.chunk import cut
from gridml.model.graph import components
from gridml.model.order import EpochOrder, Shuffle

WIDTH = 1024
MEGABYTE = 1 << 20
SIZE_MB, CHUNK_MB = sized(2048, 64), 16
WARM = 16  # chunks, after which the allocator has reached its steady state
MAX_GROWN = 8.0  # chunks: rows, two copies during encoding, as much of the previous chunk, and malloc's free blocks
MAX_CREEP = 1.0  # chunks by which memory may still grow after the first WARM


class Total(gridml.Vertex):
    value = gridml.array("float64")
    aggregate = gridml.add()


class Row(gridml.Vertex):
    values = gridml.array("float32", (WIDTH,))
    total = gridml.edge(Total)


def main() -> None:
    numbers(__doc__)
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        rows = [measure(Path(folder), SIZE_MB, CHUNK_MB, shuffle) for shuffle in ("block", "all")]
    write(
        "memory",
        f"Cutting a memory-mapped data set of {SIZE_MB:,} MB into chunks of {CHUNK_MB} MB",
        rows,
        [
            f"grown: the largest increase of anonymous memory over the start; at most {MAX_GROWN:g} chunks",
            f"creep: its part after the first {WARM} chunks; at most {MAX_CREEP:g}",
        ],
    )
    for row in rows:
        if not smallest() and (row["grown chunks"] > MAX_GROWN or row["creep chunks"] > MAX_CREEP):
            raise SystemExit(f"memory is not flat: {row}")


def measure(folder: Path, size_mb: int, chunk_mb: int, shuffle: Shuffle) -> dict[str, Any]:
    """Cut one epoch of a sparse file of `size_mb`. Return the growth of anonymous memory, in MB and in chunks."""
    count, step = size_mb * MEGABYTE // (4 * WIDTH), chunk_mb * MEGABYTE // (4 * WIDTH)
    path = folder / f"rows-{size_mb}-{shuffle}.npy"
    values = open_memmap(path, "w+", np.float32, (count, WIDTH))
    values[::step, 0] = 1.0  # one mark per chunk; the rest of the file is a hole, which takes no disk space
    graph = gridml.Graph()
    graph.add(Row, values=values, total=graph.add(Total, value=np.zeros(1)))
    graph.check()
    parts = components(graph)
    order = EpochOrder(count, 0, 0, shuffle)
    before, sizes, marked = anonymous(), [], 0.0
    began = time.perf_counter()
    for start in range(0, count, step):
        stop = min(start + step, count)
        chunk = cut(graph, "Row", order.vertices(start, stop), None, parts, bsp=False)
        payload = chunk.encode()
        sizes.append(anonymous())
        marked += float(chunk.tables["Row"].fields["values"][:, 0].sum())
        assert len(payload) > chunk_mb * MEGABYTE * 0.99 or stop == count
    spent = time.perf_counter() - began
    assert marked == len(range(0, count, step)), "a row was cut twice or never"
    path.unlink()
    grown = (max(sizes) - before) / MEGABYTE
    creep = (max(sizes) - max(sizes[:WARM])) / MEGABYTE
    return {
        "shuffle": shuffle,
        "data MB": size_mb,
        "chunk MB": chunk_mb,
        "grown MB": grown,
        "grown chunks": grown / chunk_mb,
        "creep chunks": creep / chunk_mb,
        "MB/s": size_mb / spent,
    }


def anonymous() -> int:
    """Return the bytes of this process's memory that no file backs."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/smaps_rollup has no line Anonymous")


if __name__ == "__main__":
    main()
