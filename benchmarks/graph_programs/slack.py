"""Compare slack 0, 2 and infinite on programs of stages: 4 simulated workers that are killed, on 4 parts.

The bound of slack is verified by the ledger of each run, and with slack 0 the bits are compared with those of a run in
which nobody dies. Rows of other tasks stay as recorded.

    python -m benchmarks.graph_programs.slack [TASK ...]
"""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gridml
from benchmarks.arguments import sized, words
from benchmarks.graph_programs.workers import ALL, COSTS, FACTORS, T_X, Task
from benchmarks.table import Cell, merged, write
from master.simulation.result import verify_ticks

WORKERS = PARTS = 4
TASKS = sized(
    {name: (ALL[name], size) for name, size in (("factors", "size=16"), ("topics", "size=32"))},
    {"synthetic factors": (Task(FACTORS, 240, "rmse"), "size=16")},
)
SIZE = 24  # vertices of a mini-batch
SEEDS = sized((0, 1, 2, 3), (0,))


def played(
    task: Task, workers: int, folder: Path, seed: int, *, life_s: float | None = None
) -> tuple[gridml.Report, dict[str, bytes]]:
    """Return (the report of a run in a new `folder`, the bits of what it trained, by name)."""
    folder.mkdir()
    lifetime = None if life_s is None else f"exponential({life_s}s)"
    run = folder / "run"
    asked: dict[str, Any] = {"workers": workers, "cost": COSTS, "lifetime": lifetime, "seed": seed}
    found = gridml.simulate(task.write(folder), run_dir=run, **asked).report()
    assert all(each.duplicated == each.lost == 0 for each in found.epochs)
    return found, {name: values.tobytes() for name, values in gridml.load(run).items()}


def rows_of(name: str, task: Task, size: str) -> list[dict[str, Cell]]:
    def last(found: gridml.Report) -> float:
        return float(found.epochs[-1].metrics[task.metric])

    rows: list[dict[str, Cell]] = []
    life_s = task.vertices * T_X / WORKERS / 3
    with tempfile.TemporaryDirectory() as root:
        ones = [last(played(task, 1, Path(root, f"one-{seed}"), seed)[0]) for seed in SEEDS]
        one = statistics.mean(ones)
        for slack in (0, 2, math.inf):
            where = f"size={SIZE}, slack={slack}, parts={PARTS}" if slack < math.inf else f"size={SIZE}"
            own = replace(task, replaced={**task.replaced, size: where})
            folders = [Path(root, f"killed-{slack}-{seed}") for seed in SEEDS]
            quiet = [played(own, WORKERS, Path(root, f"quiet-{slack}-{seed}"), seed) for seed in SEEDS]
            killed = [
                played(own, WORKERS, folder, seed, life_s=life_s) for folder, seed in zip(folders, SEEDS, strict=True)
            ]
            value = statistics.mean(last(found) for found, _ in killed)
            ahead = [verify_ticks(folder / "run", slack).ahead for folder in folders if slack < math.inf]
            same = all(left == right for (_, left), (_, right) in zip(quiet, killed, strict=True))
            rows.append(
                {
                    "task": name,
                    "slack": "none" if slack == math.inf else slack,
                    "metric": task.metric,
                    "one worker": round(one, 4),
                    "spread": f"{(max(ones) - min(ones)) / one:.2%}",
                    "4, no kills": round(statistics.mean(last(found) for found, _ in quiet), 4),
                    "4, killed": round(value, 4),
                    "worse by": f"{value / one - 1:+.2%}",
                    "kills": sum(found.kills for found, _ in killed),
                    "ahead, ticks": max(ahead, default=""),
                    "same bits": {True: "yes", False: "no"}[same],
                    "s, no kills": round(statistics.mean(found.wall_s for found, _ in quiet)),
                    "s, killed": round(statistics.mean(found.wall_s for found, _ in killed)),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    for name in words(__doc__, choices=list(TASKS)) or TASKS:
        rows = rows_of(name, *TASKS[name])
        write(
            "graph_slack",
            "Slack: 4 workers that are killed, on 4 parts",
            merged("graph_slack", rows, ("task", "slack")),
            [
                "real master, sessions, training and merges; time is simulated: a vertex takes "
                f"{T_X} s, a push 0.02 s; all workers are equally fast; mini-batches of up to {SIZE} "
                "vertices; lives are exponential, on average a third of a pass of 4 workers",
                f"means of {len(SEEDS)} seeds; spread: of one worker, from the smallest to the largest, in parts of "
                "the mean",
                "factors: examples/mf.py (MovieLens 100k), 20 passes; topics: examples/lda.py (King James Bible), 15; "
                "one worker: with the example's own mini-batches and no slack",
                "ahead: the largest number of ticks that a mini-batch was ahead of the slowest part when it began, by "
                "the ledger; same bits: the replica with kills equals that without, bit for bit",
                "left out: workers of different speeds and pauses, which slack is for; real machines",
            ],
        )


if __name__ == "__main__":
    main()
