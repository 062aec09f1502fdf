"""Compare one worker with 4, 16 and 64 on programs of stages, at equal passes, with and without kills.

Real master, sessions, training and merges under simulated time. A task is a program of this repository with some words
replaced, such as its rank or learning rate. Rows of other tasks, and of other numbers of workers, stay as recorded.

    python -m benchmarks.graph_programs.workers [TASK ...] [--workers N]
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gridml
from benchmarks.arguments import parser_of, sized
from benchmarks.table import Cell, merged, write

ROOT = Path(__file__).parents[2]
WORKERS = sized((4, 16, 64), (4,))
SEEDS = sized((0, 1, 2, 3), (0,))
FEWER = {16: SEEDS[:2], 64: SEEDS[:1]}  # a pass with many workers that are killed takes a minute and more
T_X = 0.5  # simulated seconds to train a vertex
COSTS = f"t_x={T_X},t_s=0.1,push=0.02"


@dataclass(frozen=True)
class Task:
    """A program and what is replaced in it."""

    program: str  #: its file, from the repository's root
    vertices: int  #: of a pass
    metric: str
    replaced: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the program into `folder`. Raises ValueError if it lacks what is replaced."""
        source = ROOT / self.program
        text = source.read_text(encoding="utf-8")
        for old, new in self.replaced.items():
            if old not in text:
                raise ValueError(f"{self.program} has no {old!r}; expected the text that this task replaces")
            text = text.replace(old, new)
        (folder / source.name).write_text(text, encoding="utf-8")
        return folder / source.name


MF, FACTORS = "examples/mf.py", "tests/programs/factors.py"
LARGER = {"USERS, ITEMS, RATED = 240, 60, 20": "USERS, ITEMS, RATED = 1_500, 300, 40", "epochs=6": "epochs=20"}
ALL = {
    "factors": Task(MF, 943, "rmse"),
    "factors, twice the rate": Task(MF, 943, "rmse", {"rate=0.02": "rate=0.04"}),
    "factors, rank 8": Task(MF, 943, "rmse", {"RANK, RIDGE, EPOCHS = 32": "RANK, RIDGE, EPOCHS = 8"}),
    "topics": Task("examples/lda.py", 1_129, "perplexity"),
    "synthetic factors": Task(FACTORS, 1_500, "rmse", LARGER),
}
TINY = {"synthetic factors": Task(FACTORS, 240, "rmse")}
TASKS = sized(ALL, TINY)


NOTES = [
    f"real master, sessions, training and merges; time is simulated: a vertex takes {T_X} s, a push 0.02 s; all "
    "workers are equally fast; every vertex of every pass was counted once",
    f"means of seeds, of one worker of {len(SEEDS)}; spread: of one worker, smallest to largest, in parts of the mean",
    "killed: lives are exponential, on average a third of a pass of W workers, half of them without grace",
    "factors: examples/mf.py (MovieLens 100k), 20 passes; topics: examples/lda.py (King James Bible), 15; synthetic "
    "factors: tests/programs/factors.py with 1,500 users, 300 items and 60,000 ratings without noise, 20 passes, the "
    "error on what was trained",
    "left out: workers of different speeds, slow networks, larger graphs, and the time that passes take: a pass ends "
    "when its last worker does",
]


@dataclass(frozen=True)
class Ended:
    """What several runs of a task ended with, one for each seed."""

    metrics: tuple[float, ...]
    kills: int  #: of all runs

    @property
    def mean(self) -> float:
        return statistics.mean(self.metrics)

    @property
    def spread(self) -> float:
        return (max(self.metrics) - min(self.metrics)) / self.mean


def ended(task: Task, workers: int, *, kills: bool = False) -> Ended:
    """Train once for each seed that this many workers take."""
    life_s = task.vertices * T_X / workers / 3
    metrics, deaths = [], 0
    for seed in FEWER.get(workers, SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            program, lifetime = task.write(Path(folder)), f"exponential({life_s}s)" if kills else None
            asked: dict[str, Any] = {"workers": workers, "cost": COSTS, "lifetime": lifetime, "seed": seed}
            found = gridml.simulate(program, run_dir=Path(folder) / "run", **asked).report()
            assert all(each.duplicated == each.lost == 0 for each in found.epochs)
            metrics.append(float(found.epochs[-1].metrics[task.metric]))
            deaths += found.kills
            print(f"{task.program}, {workers} workers, kills {kills}, seed {seed}: {metrics[-1]:.4f}", flush=True)
    return Ended(tuple(metrics), deaths)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", choices=[*TASKS, []], help=", ".join(TASKS))
    parser.add_argument("--workers", type=int, action="append", choices=WORKERS, help="default: each of them")
    asked = parser.parse_args()
    for name in asked.tasks or TASKS:
        one = ended(TASKS[name], 1)
        for workers in asked.workers or WORKERS:
            row = row_of(name, TASKS[name], one, workers)
            rows = merged("graph_workers", [row], ("task", "W"))
            write("graph_workers", "Programs of stages with many workers, after the same passes", rows, NOTES)


def row_of(name: str, task: Task, one: Ended, workers: int) -> dict[str, Cell]:
    """Return the line of a task and a number of workers, beside one worker."""
    row: dict[str, Cell] = {"task": name, "metric": task.metric, "W": workers}
    row |= {"one worker": round(one.mean, 4), "spread": f"{one.spread:.2%}"}
    row["seeds"] = len(FEWER.get(workers, SEEDS))
    for column, kills in (("W workers", False), ("killed", True)):
        many = ended(task, workers, kills=kills)
        row[column], row[f"{column}, worse by"] = round(many.mean, 4), f"{many.mean / one.mean - 1:+.2%}"
    row["kills"] = many.kills
    return row


if __name__ == "__main__":
    main()
