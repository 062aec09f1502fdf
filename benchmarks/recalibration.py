"""Measure the gain of recalibrated running statistics for the replicas of a network with BatchNorm.

Real training on simulated machines; the replica of every epoch is evaluated with the merged statistics and with
recalibrated ones. Needs CIFAR-10: GRIDML_DATA names the folder, see `benchmarks/programs/cifar.py`.

    GRIDML_DATA=... python -m benchmarks.recalibration [--workers N ...] [--seeds SEED ...]
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from benchmarks.arguments import parser_of, sized
from benchmarks.hostile_steps import PROGRAMS
from benchmarks.table import Cell, write
from chunk_model.goodput import Costs
from gridml.model.program import Metrics
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.evaluation import recalibration
from master.evaluation.evaluator import Evaluated, InlineEvaluator, Subject
from master.evaluation.metrics import evaluate
from master.evaluation.recalibration import Recalibration, with_statistics
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.store.spec import RunSpec
from remote.stepped import Trainer

COSTS = Costs(exec_s=0.001, start_s=0.5, push_s=0.02, boot_s=1.0)
SOURCE = PROGRAMS / "cifar.py"


def play(workers: int, seed: int) -> list[Metrics]:
    """Return the accuracy of every epoch with `merged` and with `recalibrated` statistics, and the CPU seconds of
    recalibration (`s`)."""
    epochs: list[Metrics] = []

    def metrics(here: InlineEvaluator, subject: Subject, limit_s: float) -> Evaluated:
        spec = RunSpec(here._settings, here._program, here._graph())
        state = here._versions.read(subject.version, subject.sha256)
        began_s = time.process_time()
        statistics, problem = Recalibration(spec).gather(subject.version, state)
        recalibrated = with_statistics(state, statistics)
        assert problem is None, problem
        spent_s = time.process_time() - began_s
        accuracy = [evaluate(spec.program, spec.graph, s, SOURCE)["accuracy"] for s in (state, recalibrated)]
        epochs.append({"merged": accuracy[0], "recalibrated": accuracy[1], "s": spent_s})
        return Evaluated({"accuracy": accuracy[1]})

    scenario = Scenario(Steady(workers), COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=seed)
    settings = Settings(SOURCE, "simulated", workers, seed=seed, steps_each=0, options=SimulatedOptions(None, None))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(InlineEvaluator, "evaluate", metrics):
        play_scenario(settings, scenario, Path(folder) / "run", trainer=Trainer(SOURCE, COSTS, seed))
    return epochs


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=sized([4, 16], [2]))
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([1, 2], [1]))
    arguments = parser.parse_args()
    os.environ["NORM"] = "batch"
    rows: list[dict[str, Cell]] = []
    for workers in arguments.workers:
        runs = [play(workers, seed) for seed in arguments.seeds]
        for epoch, ends in enumerate(zip(*runs, strict=True), 1):
            row: dict[str, Cell] = {"workers": workers, "epoch": epoch}
            row |= {f"{how} %": 100 * statistics.mean(end[how] for end in ends) for how in ("merged", "recalibrated")}
            gains = [100 * (end["recalibrated"] - end["merged"]) for end in ends]
            rows.append(row | {"gain": statistics.mean(gains), "least": min(gains), "s": max(end["s"] for end in ends)})
            print(rows[-1], flush=True)
    write(
        "recalibration",
        "BatchNorm: accuracy with merged and with recalibrated statistics",
        rows,
        [
            f"CIFAR-10, 10,000 images, a small network with BatchNorm, default rule and interval; means of seeds "
            f"{', '.join(map(str, arguments.seeds))}; gain and the least of them in points",
            f"recalibrated: by {recalibration.MIN_ROWS:,} rows in batches of 64, without gradients; s: its CPU seconds",
        ],
    )


if __name__ == "__main__":
    main()
