"""Compare the simulator with real workers: four processes on this machine, with and without kills, and the same runs
under simulated time.

    GRIDML_DATA=DIR python -m benchmarks.averaging.real [--workers 4] [--task NAME ...] [--seeds 3]

The simulated machines have the measured costs of the real ones: of a vertex, with all workers on these cores, and of a
start. Lives are a third of a worker's share of the run on average, half of them end without grace, and both runs have
the same lives. All workers push every 1,024 vertices.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest import mock

from benchmarks.arguments import sized
from benchmarks.averaging.options import counts_of, parser, tasks_of
from benchmarks.averaging.runs import Case, Task
from benchmarks.table import Cell, write
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.launch import start
from master.ports.environment import Environment
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from remote.stepped import Trainer

USUAL = ("CIFAR-10, GroupNorm", "Bible, transformer")  # runs that last for a minute
PUSH_S, TRAVEL_S, START_S, GRACE_S = 0.005, 0.01, 0.05, 5.0  # rough measurements; results hardly depend on them


@dataclass(frozen=True)
class Ran:
    """The result of a run."""

    metric: float
    seconds: float
    lives: int  #: workers that were used up
    exec_s: float  #: of a vertex
    boot_s: float  #: of a start


def main() -> None:
    given = parser("Compare the simulator with real workers.", workers="4")
    given.add_argument("--seeds", type=int, default=sized(3, 1))
    options = given.parse_args()
    rows = [
        row
        for task in tasks_of(options, USUAL)
        for count in counts_of(options)
        for row in compared(task, count, options.seeds)
    ]
    write(
        "averaging_real",
        "Real workers against the simulator",
        rows,
        [
            f"accuracy in %, or loss, after the program's own epochs: medians of {options.seeds} seeds, and their "
            "range",
            "simulated: with the time of a vertex and of a start measured in the real run of the same seed without "
            "kills; a push is assumed to cost 5 ms and to travel for 10 ms",
        ],
    )


def compared(task: Task, workers: int, seeds: int) -> list[dict[str, Cell]]:
    """Return two lines of the table: without and with kills."""
    runs: dict[tuple[bool, bool], list[Ran]] = {}  # by (with kills, on real processes)
    for seed in range(seeds):
        plain = real(task, workers, Steady(workers), seed)
        life_s = task.vertices * task.epochs * plain.exec_s / workers / 3 + plain.boot_s
        killing = ScriptedLives(workers, Exponential(life_s), seed, grace_s=GRACE_S, late=0)
        for killed, script in ((False, Steady(workers)), (True, killing)):
            ran = real(task, workers, script, seed) if killed else plain
            runs.setdefault((killed, True), []).append(ran)
            runs.setdefault((killed, False), []).append(simulated(task, workers, script, seed, plain))
            print(f"{task.name}, seed {seed}: {ran}, simulated {runs[killed, False][-1]}", flush=True)
    return [line(task, workers, killed, runs[killed, True], runs[killed, False]) for killed in (False, True)]


def line(
    task: Task, workers: int, killed: bool, real_runs: Sequence[Ran], simulated_runs: Sequence[Ran]
) -> dict[str, Cell]:
    """Return a line of the table."""
    row: dict[str, Cell] = {"task": task.name, "W": workers, "killed": "yes" if killed else "no"}
    for name, runs in (("real", real_runs), ("simulated", simulated_runs)):
        values = [task.shown(ran.metric) for ran in runs]
        row[name] = median(values)
        row[f"{name}, range"] = f"{min(values):g} to {max(values):g}"
        row[f"{name} s"] = round(median(ran.seconds for ran in runs), 1)
        row[f"{name} lives"] = median(ran.lives for ran in runs)
    return row


def real(task: Task, workers: int, script: Script, seed: int) -> Ran:
    """Train on processes of this machine."""

    def pool(settings: Settings, directory: RunDirectory) -> Local:
        return Local(worker_command(settings, directory), script, directory.logs)

    with mock.patch.dict(os.environ, task.environment()), tempfile.TemporaryDirectory() as folder:
        settings = Settings(task.source, workers=workers, epochs=task.epochs, seed=seed, push_every=Case.interval)
        with start(settings, Path(folder) / "run", Environment(pool)) as run:
            run.finish()
        return _ran(task, Path(folder) / "run")


def simulated(task: Task, workers: int, script: Script, seed: int, seen: Ran) -> Ran:
    """Play the same run under simulated time, with the costs of the real run `seen`."""
    costs = Costs(exec_s=seen.exec_s, start_s=START_S, push_s=PUSH_S, boot_s=seen.boot_s)
    scenario = Scenario(script, costs, travel_s=TRAVEL_S, seed=seed)
    with mock.patch.dict(os.environ, task.environment()), tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            task.source,
            "simulated",
            workers,
            epochs=task.epochs,
            seed=seed,
            push_every=Case.interval,
            options=SimulatedOptions(None, None),
        )
        trainer = Trainer(task.source, costs, seed)
        play_scenario(settings, scenario, Path(folder) / "run", trainer=trainer)
        return _ran(task, Path(folder) / "run")


def _ran(task: Task, root: Path) -> Ran:
    with opened(root) as ledger:
        (metrics, ended) = ledger.execute("SELECT metrics, closed_s FROM epochs ORDER BY epoch DESC LIMIT 1").fetchone()
        began, boot_s, lives, exec_s = ledger.execute(
            "SELECT min(submitted_s), avg(first_sync_s - started_s), count(started_s), sum(train_s) / sum(trained) "
            "FROM workers"
        ).fetchone()
    return Ran(float(json.loads(metrics)[task.metric]), ended - began, lives, exec_s, boot_s)


if __name__ == "__main__":
    main()
