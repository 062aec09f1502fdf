"""What a placement saves a run: the bytes of rows between workers and master, and the time of an epoch.

A factorisation machine (`programs/clicks.py`) on click-through data and on ratings, drawn by chance: in the simulator
with 64 workers, which really train and die, and with 4 processes on this machine that are really killed. Of each order
of the data, by chance or placed by a method, what travelled is set against what the placement said.

    python -m benchmarks.placed_runs [ROWS] [simulated|local]
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.placement_graphs import clicks
from benchmarks.table import Cell, write
from chunk_model.costs import Costs
from chunk_model.families import Exponential
from gridml.placement.base import Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.registry import find
from gridml.placement.traffic import traffic
from master.backends.local_plugin import LocalOptions
from master.backends.registry import make
from master.backends.script import Lives
from master.backends.simulated_plugin import SimulatedOptions
from master.environment import Environment
from master.launch import start
from master.leases.chunks import Chunks
from master.records import LeaseState
from master.simulation.exact import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer

PROGRAM = Path(__file__).parent / "programs" / "clicks.py"
ROWS, EPOCHS = 100_000, 4
ORDERS = ("none", "parsa", "multilevel")
AS_BEFORE = "as before"  # of code that knows no placement: this file runs on that, too
BATCH = 32  # of the program
COSTS = Costs(exec_s=0.001, start_s=0.2, push_s=0.05, boot_s=2.0)
SIMULATED, LOCAL = 64, 4  # workers
PUSHES = (1, 16)  # of a worker in an epoch
LIFE_S = {"simulated": 60.0, "local": 6.0}  # of workers on average


@dataclass(frozen=True)
class Travelled:
    """Of a whole run, in bytes: rows and messages `up`, rows `down`, and `chunks`; seconds of the last `epochs` but the
    first, each."""

    up: int
    down: int
    chunks: int
    epoch_s: float
    killed: int
    exact: bool


def ratings(rows: int, seed: int) -> Bipartite:
    """Rows like ratings: of a person and an item each. A person has one of forty tastes, and nine in ten of what they
    rate are items of that, by a power law."""
    rng, people, items = np.random.default_rng(seed), rows // 10, rows // 100
    taste = rng.integers(0, 40, people)
    person = rng.integers(0, people, rows)
    own = taste[person] * items // 40 + ((items // 40) ** rng.random(rows)).astype(np.int64) - 1
    item = np.where(rng.random(rows) < 0.9, own, rng.integers(0, items, rows))
    return Bipartite.from_edges(
        np.repeat(np.arange(rows), 2), np.stack([person, people + item], 1).ravel(), (rows, people + items)
    )


GRAPHS: dict[str, Callable[[int], Bipartite]] = {
    "clicks": lambda rows: clicks(rows, 200, 1),
    "ratings": lambda rows: ratings(20 * rows, 1),
}


def predicted(graph: Bipartite, method: str, parts: int) -> float:
    """Columns that parts touch together, for each that data by chance do."""
    by_chance, placed = (traffic(graph, find(name).place(graph, parts, Options())) for name in ("random", method))
    return float(placed.touched.sum() / by_chance.touched.sum())


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list that gets the bytes of every chunk that is published."""
    sizes: list[int] = []
    publish = Chunks.publish

    def noted(chunks: Chunks, lease: LeaseState) -> int:
        sizes.append(publish(chunks, lease))
        return sizes[-1]

    with mock.patch.object(Chunks, "publish", noted):
        yield sizes


def simulated(settings: dict[str, Any], root: Path) -> None:
    scenario = Scenario(Lives(SIMULATED, Exponential(LIFE_S["simulated"]), 1), COSTS)
    chosen = Settings(PROGRAM, "simulated", SIMULATED, options=SimulatedOptions(None, None), **settings)
    play_scenario(chosen, scenario, root, trainer=Trainer(PROGRAM, COSTS))


def local(settings: dict[str, Any], root: Path) -> None:
    options = LocalOptions(lifetime=f"exponential({LIFE_S['local']:g}s)")
    with start(Settings(PROGRAM, "local", LOCAL, options=options, **settings), root, Environment(make)) as run:
        run.finish()


def play(graph: Path, where: str, order: str, rows: int, pushes: int) -> Travelled:
    trained = rows - rows // 10
    chunk = trained // (SIMULATED if where == "simulated" else LOCAL)  # a part in one lease
    every = max(BATCH, chunk // pushes // BATCH * BATCH) if pushes > 1 else chunk
    settings: dict[str, Any] = {"epochs": EPOCHS, "chunk": chunk, "push_every": every, "steps_each": 0}
    if order != AS_BEFORE:
        settings["placement"] = order
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, GRIDML_GRAPH=str(graph), OMP_NUM_THREADS="1"),
        counted() as sizes,
    ):
        root = Path(folder) / "run"
        {"simulated": simulated, "local": local}[where](settings, root)
        exact, summary = verify_credits(root), report(root)
        with sqlite3.connect(root / "ledger.db") as db:
            ((began_s, ended_s),) = db.execute("SELECT min(closed_s), max(closed_s) FROM epochs")
    return Travelled(
        summary.bytes_up,
        summary.bytes_down - sum(sizes),
        sum(sizes),
        (ended_s - began_s) / (EPOCHS - 1),
        summary.kills,
        exact.finished == exact.epochs == EPOCHS,
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    places = sys.argv[2:3] or ["simulated", "local"]
    orders = sys.argv[3:] or [*ORDERS]
    table: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, drawn in GRAPHS.items():
            graph, path = drawn(rows), Path(folder) / f"{name}.npz"
            np.savez(path, indptr=graph.offsets, indices=graph.neighbours, shape=(graph.rows, graph.columns))
            for where in places:
                for pushes in PUSHES:
                    table += compare(name, graph, path, where, orders, pushes)
    write("placed_runs", f"Runs with and without placement, {rows:,} impressions", table, NOTES)


def compare(
    name: str, graph: Bipartite, path: Path, where: str, orders: list[str], pushes: int
) -> list[dict[str, Cell]]:
    """One row for each order, the first of which is what the others are set against."""
    lines: list[dict[str, Cell]] = []
    first: Travelled | None = None
    for order in orders:
        played = play(path, where, order, graph.rows, pushes)
        first = first or played
        parts = SIMULATED if where == "simulated" else LOCAL
        chance = order in ("none", AS_BEFORE)
        lines.append(
            {
                "graph": name,
                "workers": f"{parts} {where}",
                "pushes": pushes,
                "order": order,
                "rows down, MB/epoch": round(played.down / 1e6 / EPOCHS, 2),
                "up, MB/epoch": round(played.up / 1e6 / EPOCHS, 2),
                "chunks, MB/epoch": round(played.chunks / 1e6 / EPOCHS, 2),
                "of the first, down": round(played.down / first.down, 3),
                "of the first, up": round(played.up / first.up, 3),
                "predicted": None if chance else round(predicted(graph, order, parts), 3),
                "s/epoch": round(played.epoch_s, 2),
                "kills": played.killed,
                "exact": played.exact,
            }
        )
        print(lines[-1], flush=True)
    return lines


NOTES = (
    "pushes: of a worker in an epoch, one at its end or sixteen.",
    "rows down: answers without chunks, so messages, too; up: pushes. chunks: data, which no placement saves.",
    "predicted: columns that parts touch together, for each that as many parts by chance do; whole graph, no deaths.",
    "In the simulator seconds are those of its clock, where a push costs the same whatever it carries.",
    "Workers live 60 s in the simulator and 6 s here on average, exponentially; a new one has no rows.",
)


if __name__ == "__main__":
    main()
