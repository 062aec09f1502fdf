"""Compare mini-batches of equally many vertices with those of equally many edges, where degrees have a heavy tail.

The stage `learn` of examples/mf.py goes over three graphs: Slashdot's links and Gowalla's visits (GRIDML_DATA names the
folder with the files) and ratings drawn with log-normal numbers of ratings a user. A pass is cut into 16 parts, by
`size=` and by `edges=` into equally many mini-batches. One thread trains them, in turn; a mini-batch's CPU time is the
least of some repeats. `in step` is the time of a pass with slack 0 and 16 workers of this speed, in which every tick
takes as long as its longest mini-batch, compared with equal shares; pushes cost nothing in it.

    GRIDML_DATA=... python -m benchmarks.graph_programs.mini_batches
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import numbers, sized
from benchmarks.graph_programs.ratings import drawn
from benchmarks.table import Cell, write
from gridml.engine.engine import Engine
from gridml.model.chunk import cut
from gridml.model.graph import Graph, csr
from gridml.model.loading import load
from gridml.model.order import EpochOrder
from gridml.model.phases import Stages
from gridml.model.program import Program
from gridml.model.stages import MiniBatch
from gridml.protocol.push import ReplicaPart, RowValues

Array = NDArray[Any]
MF = Path(__file__).parents[2] / "examples" / "mf.py"
FILES = {"slashdot": "snap/soc-slashdot0902-directed.edges.gz", "gowalla": "recsys/gowalla-train.tsv.gz"}
DRAWN = sized((70_000, 10_000, 4_000_000), (200, 20, 2_000))
PARTS, TICKS = 16, sized(8, 2)
REPEATS = sized(7, 1)


def graphs() -> Iterator[tuple[str, Array, Array]]:
    """Yield (name, offsets (vertices+1,), targets (edges,)) of each graph that is there."""
    data = os.environ.get("GRIDML_DATA")
    for name, file in FILES.items():
        if data is None or not (path := Path(data) / file).is_file() or sized(False, True):
            print(f"{name} is skipped: GRIDML_DATA names no folder with {file}")
            continue
        with gzip.open(path, "rt") as lines:
            pairs = np.loadtxt(lines, np.int64, comments="#", usecols=(0, 1))
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        source = np.unique(pairs[:, 0], return_inverse=True)[1]
        yield name, np.searchsorted(source, np.arange(source.max() + 2)), np.unique(pairs[:, 1], return_inverse=True)[1]
    made = drawn(*DRAWN)
    yield "drawn ratings", made.offsets, made.item


def program_on(offsets: Array, targets: Array, batch: dict[str, int]) -> Program:
    """Return matrix factorisation on a graph, with these options of its MiniBatch."""
    loaded = load(MF)
    assert isinstance(loaded.shape, Stages)
    types, rng = {name: each.cls for name, each in loaded.types().items()}, np.random.default_rng(0)

    def graph() -> Graph:
        g, rank = Graph(), loaded.types()["Item"].arrays["q"].shape[0]
        g.add(types["Shared"], mean=0, rate=0.02)
        g.add(types["Item"], bias=0, q=rng.normal(0, 0.1, (int(targets.max()) + 1, rank)))
        rated = csr(offsets, targets, rng.normal(0, 1, len(targets)).astype(np.float32))
        g.add(types["User"], bias=0, p=rng.normal(0, 0.1, (len(offsets) - 1, rank)), rated=rated)
        return g

    work = [MiniBatch(loaded.shape.stages, **batch, slack=0, parts=PARTS)]  # type: ignore[arg-type]
    return replace(loaded, graph=graph, update=work, evaluate=None)


def measured(program: Program) -> tuple[Array, Array, Array]:
    """Return (vertices, edges, CPU seconds) of the mini-batches of a pass, each (parts, ticks)."""
    graph = program.build(MF)
    users, ticks = graph.tables["User"], program.division(graph)
    assert ticks is not None
    order = EpochOrder(users.count, 0, 0, "block", ticks=ticks)
    at = order.vertices(0, users.count)
    engine, ends = Engine(program), order.ends(0, users.count)
    assert ends is not None
    engine.begin(cut(graph, "User", at, ends, None, bsp=False))
    rows = {
        name: RowValues(np.arange(graph.tables[name].count), graph.tables[name].columns) for name in ("Item", "Shared")
    }
    engine.restart(ReplicaPart({}, rows))
    engine.compile()
    starts, times = [0, *ends[:-1].tolist()], np.empty((REPEATS, len(ends)))
    for repeat in range(REPEATS):
        for number, (start, stop) in enumerate(zip(starts, ends.tolist(), strict=True)):
            began = time.thread_time()
            engine.train(start, stop, 1.0)
            times[repeat, number] = time.thread_time() - began
    vertices = np.diff(ends, prepend=0)
    edges = np.add.reduceat(users.edges["rated"].lengths[at], starts)
    return tuple(each.reshape(ticks.parts, ticks.count) for each in (vertices, edges, times.min(0)))  # type: ignore[return-value]


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    for name, offsets, targets in graphs():
        count, edges = len(offsets) - 1, len(targets)
        counted = int(np.maximum(np.diff(offsets), 1).sum())  # a vertex without edges counts as one
        for by, size in (("size", -(-count // (PARTS * TICKS))), ("edges", -(-counted // (PARTS * TICKS)))):
            vertices, links, seconds = measured(program_on(offsets, targets, {by: size}))
            rows.append(
                {
                    "graph": name,
                    "edges": edges,
                    "largest degree": int(np.diff(offsets).max()),
                    "MiniBatch": f"{by}={size:,}",
                    "mini-batches": vertices.size,
                    "most vertices": int(vertices.max()),
                    "edges: mean": round(float(links.mean())),
                    "most/mean": round(float(links.max() / links.mean()), 2),
                    "CPU ms: mean": round(1e3 * float(seconds.mean()), 3),
                    "longest/mean": round(float(seconds.max() / seconds.mean()), 2),
                    "in step": round(float(seconds.max(0).sum() * PARTS / seconds.sum()), 2),
                }
            )
            print(rows[-1], flush=True)
    notes = [
        "`in step`: a pass of 16 workers with slack 0, where a tick takes as long as its longest mini-batch, compared "
        "with equal shares. CPU time of one thread, the least of some repeats of each mini-batch; pushes are left out."
    ]
    write("graph_mini_batches", "Mini-batches by vertices and by edges", rows, notes)


if __name__ == "__main__":
    main()
