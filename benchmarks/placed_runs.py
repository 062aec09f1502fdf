"""Measure the savings of a placement in a run: the bytes of rows between workers and master, and the time of an epoch.

A factorisation machine (`programs/clicks.py`) trains on random click-through data and on ratings: in the simulator
with 64 workers, which really train and die, and with 4 processes on this machine that are really killed. The traffic
of each order of the data, random or placed by a method, is compared with the prediction of the placement. `large` is
100,000 impressions, and 10,000,000 ratings of 100,000 items by 1,000,000 people. A run of a subset keeps the rest of
the table.

    python -m benchmarks.placed_runs [small|large] [--graph GRAPH] [--where simulated|local] [--order ORDER ...]
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.arguments import parser_of, sized
from benchmarks.placement.graphs import clicks, ratings
from benchmarks.table import Cell, results, write
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.placement.bipartite import Bipartite
from master.backends.local_plugin import LocalOptions
from master.backends.registry import make
from master.backends.script import ScriptedLives
from master.backends.simulated_plugin import SimulatedOptions
from master.launch import start
from master.leases.chunks import Chunks
from master.ports.environment import Environment
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer

PROGRAM = Path(__file__).parent / "programs" / "clicks.py"
ORDERS = sized(("none", "parsa", "multilevel"), ("none", "parsa"))
AS_BEFORE = "as before"  # the order in older versions of gridml, which have no placement: this file runs on them, too
COSTS = Costs(exec_s=0.001, start_s=0.2, push_s=0.05, boot_s=2.0)
SIMULATED, LOCAL = sized(64, 4), sized(4, 2)  # workers
PUSHES = sized((1, 16), (1,))  # of a worker in an epoch
SIMULATED_LIFE_S = 60.0  # of workers on average


@dataclass(frozen=True)
class Sized:
    """The size of the data and of its training."""

    rows: int
    epochs: int
    batch: int  #: of the program
    exec_s: float  #: of a row in the simulator
    life_s: float  #: mean life of workers on this machine


# Rows of the large data take less simulated time, so that an epoch is as long, and as many workers die in it.
SIZES = {
    "small": {
        "clicks": Sized(sized(10_000, 400), sized(4, 2), 32, 1e-3, 6.0),
        "ratings": Sized(200_000, 4, 32, 1e-3, 6.0),
    },
    "large": {"clicks": Sized(100_000, 4, 128, 1e-4, 30.0), "ratings": Sized(10_000_000, 2, 2048, 2e-5, 150.0)},
}
RESULT = {"small": "placed_runs", "large": "placed_runs_large"}


@dataclass(frozen=True)
class Travelled:
    """The traffic of a whole run, in bytes, and its costs."""

    up: int  #: rows and messages
    down: int  #: rows
    chunks: int
    run_s: float  #: seconds from the first lease on
    epoch_s: float  #: seconds of an epoch after the first
    killed: int
    exact: bool
    loss: float  #: the last one, on data that is not trained
    predicted: float | None  #: bytes of rows that a part touches, relative to a random part; None: not placed
    cpu_s: float  #: of this process
    peak_mb: float  #: of this process


GRAPHS: dict[str, Callable[[int], Bipartite]] = {
    "clicks": lambda rows: clicks(rows, 200, 1),
    "ratings": lambda rows: ratings(rows, 1),
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list to which the size in bytes of every published chunk is appended."""
    sizes: list[int] = []
    publish = Chunks.publish

    def counting(chunks: Chunks, *arguments: Any) -> int:
        sizes.append(publish(chunks, *arguments))
        return sizes[-1]

    with mock.patch.object(Chunks, "publish", counting):
        yield sizes


def simulated(settings: dict[str, Any], root: Path, sized: Sized) -> None:
    costs = replace(COSTS, exec_s=sized.exec_s)
    scenario = Scenario(ScriptedLives(SIMULATED, Exponential(SIMULATED_LIFE_S), 1), costs)
    chosen = Settings(PROGRAM, "simulated", SIMULATED, options=SimulatedOptions(None, None), **settings)
    play_scenario(chosen, scenario, root, trainer=Trainer(PROGRAM, costs))


def local(settings: dict[str, Any], root: Path, sized: Sized) -> None:
    options = LocalOptions(lifetime=f"exponential({sized.life_s:g}s)")
    with start(Settings(PROGRAM, "local", LOCAL, options=options, **settings), root, Environment(make)) as run:
        run.finish()


def play(graph: Path, where: str, order: str, sized: Sized, pushes: int) -> Travelled:
    trained = sized.rows - -(-sized.rows // 10)
    chunk = trained // (SIMULATED if where == "simulated" else LOCAL)  # a part in one lease
    every = max(sized.batch, chunk // pushes // sized.batch * sized.batch) if pushes > 1 else chunk
    settings: dict[str, Any] = {"epochs": sized.epochs, "chunk": chunk, "push_every": every, "steps_each": 0}
    if order != AS_BEFORE:
        settings["placement"] = order
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, GRIDML_GRAPH=str(graph), BATCH=str(sized.batch), OMP_NUM_THREADS="1"),
        counted() as sizes,
    ):
        root = Path(folder) / "run"
        {"simulated": simulated, "local": local}[where](settings, root, sized)
        exact, summary = verify_credits(root), report(root)
        with sqlite3.connect(root / "ledger.db") as db:
            ((first_s, ended_s),) = db.execute("SELECT min(closed_s), max(closed_s) FROM epochs")
            ((began_s,),) = db.execute("SELECT min(opened_s) FROM leases")
            ((metrics,),) = db.execute("SELECT metrics FROM epochs ORDER BY epoch DESC LIMIT 1")
            placed = db.execute("SELECT facts FROM events WHERE topic = 'placement'").fetchone()
    return Travelled(
        summary.bytes_up,
        summary.bytes_down - sum(sizes),
        sum(sizes),
        ended_s - began_s,
        (ended_s - first_s) / (sized.epochs - 1),
        summary.kills,
        exact.finished == exact.epochs == sized.epochs,
        json.loads(metrics)["loss"],
        None if placed is None else _predicted(json.loads(placed[0])),
        time.process_time(),
        _peak_mb(),
    )


def _predicted(facts: dict[str, Any]) -> float | None:
    return None if facts["method"] is None else float(facts["placed_bytes"] / facts["chance_bytes"])


def _peak_mb() -> float:
    """Return the peak memory of this process. getrusage's maximum would include the parent before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    asked = parser_of(__doc__)
    asked.add_argument("size", nargs="?", choices=SIZES, default="small")
    asked.add_argument("--graph", nargs="+", choices=GRAPHS, default=sized([*GRAPHS], ["clicks"]))
    asked.add_argument("--where", nargs="+", choices=("simulated", "local"), default=["simulated", "local"])
    asked.add_argument("--pushes", nargs="+", type=int, default=PUSHES)
    asked.add_argument("--order", nargs="+", default=ORDERS)
    chosen = asked.parse_args()
    sizes = SIZES[chosen.size]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.graph:
            graph, path = GRAPHS[name](sizes[name].rows), Path(folder) / f"{name}.npz"
            np.savez(path, indptr=graph.offsets, indices=graph.neighbours, shape=(graph.rows, graph.columns))
            del graph  # a ratings graph of 10,000,000 rows takes gigabytes, and the runs are in other processes
            for where in chosen.where:
                for pushes in chosen.pushes:
                    keep(chosen.size, compare(name, path, where, chosen.order, sizes[name], pushes))


def compare(name: str, path: Path, where: str, orders: list[str], sized: Sized, pushes: int) -> list[dict[str, Cell]]:
    """Return a line of the table for each order; the first one is the reference of the others."""
    lines: list[dict[str, Cell]] = []
    first: Travelled | None = None
    for order in orders:
        # A fresh process for each run: its CPU time and peak memory are measured.
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            played = alone.submit(play, path, where, order, sized, pushes).result()
        first = first or played
        lines.append(
            {
                "graph": name,
                "workers": f"{SIMULATED if where == 'simulated' else LOCAL} {where}",
                "pushes": pushes,
                "order": order,
                "rows down, MB/epoch": round(played.down / 1e6 / sized.epochs, 2),
                "up, MB/epoch": round(played.up / 1e6 / sized.epochs, 2),
                "chunks, MB/epoch": round(played.chunks / 1e6 / sized.epochs, 2),
                "of the first, down": round(played.down / first.down, 3),
                "of the first, up": round(played.up / first.up, 3),
                "predicted": None if played.predicted is None else round(played.predicted, 3),
                "s": round(played.run_s, 1),
                "s/epoch": round(played.epoch_s, 2),
                "kills": played.killed,
                "exact": played.exact,
                "loss": round(played.loss, 4),
                "CPU s": round(played.cpu_s, 1),
                "peak MB": round(played.peak_mb),
            }
        )
        print(lines[-1], flush=True)
    return lines


def keep(size: str, lines: list[dict[str, Cell]]) -> None:
    """Replace the lines of the same runs in a table, and keep its other lines."""
    result, rows = RESULT[size], {name: sized.rows for name, sized in SIZES[size].items()}
    title = f"Runs with and without placement, {rows['clicks']:,} impressions, {rows['ratings']:,} ratings"
    path = results() / f"{result}.json"
    known = {_run(line): line for line in json.loads(path.read_text())["rows"]} if path.exists() else {}
    write(result, title, [*(known | {_run(line): line for line in lines}).values()], NOTES + LARGE * (size == "large"))


def _run(line: dict[str, Cell]) -> tuple[Cell, ...]:
    return tuple(line[column] for column in ("graph", "workers", "pushes", "order"))


NOTES = (
    "pushes: of a worker in an epoch, one at its end or sixteen.",
    "rows down: answers without chunks, including messages; up: pushes. chunks: data, which no placement saves.",
    "predicted: bytes of rows that parts touch, relative to random parts, from the run's event; without deaths.",
    "loss: after the last epoch, of every tenth row, which is held out; one seed.",
    "In the simulator seconds are those of its clock, by which a push costs the same whatever its content.",
    "s: from the first lease to the end of the last epoch; s/epoch: of the epochs after the first, which overlap it.",
    "Workers live 60 s in the simulator on average, exponentially; a new one has no rows. Processes here live 6 s; "
    "with 100,000 impressions 30 s, with 10,000,000 ratings 150 s.",
    "CPU s, peak MB: of the master's process, with its graph and the placement; in the simulator also of all workers.",
    "Other work shares this machine, so the seconds of local runs mean little.",
)
LARGE = (
    "Four epochs of impressions in batches of 128, two of ratings in batches of 2,048. In the simulator a row takes "
    "less time than in the small runs, so that an epoch is as long, and as many workers die in it.",
    "Left out: ratings on 4 processes by multilevel with 16 pushes.",
    "On 4 processes a run without placement takes longer, so more of its workers die; one run each.",
)


if __name__ == "__main__":
    main()
