"""Compare 1, 4, 16 and more workers at equal samples, with and without kills, on several tasks.

    GRIDML_DATA=DIR python -m benchmarks.averaging [--seeds N] [--workers 4,16,64,256] [--task NAME ...]

Every run is kept in `benchmarks/results/averaging_runs.jsonl` by its configuration, so an interrupted comparison
resumes. GRIDML_DATA names the folder with the data of the tasks. The table also shows two alternatives on the same
machines: one worker alone, and a synchronous loop with a batch W times as large, at the best of several learning rates.
"""

from __future__ import annotations

import os
import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

from benchmarks.averaging.options import counts_of, lines_of, parser, tasks_of
from benchmarks.averaging.runs import BUDGET, EXEC_S, RATES, WIDE, Case, Curve, Runs, Task, play
from benchmarks.table import Cell, results, write
from master.store.settings import STEPS_EACH

MAX_WORKERS = 64  # of tasks whose whole tensors are averaged
WARM = 0.1  # share of a run, at its start, in which curves are not compared


def main() -> None:
    given = parser("Compare numbers of workers at equal samples.", "4,16,64,256")
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--interval", type=int, default=1_024)
    given.add_argument("--kept", action="store_true", help="use the kept runs and make no new ones")
    options = given.parse_args()
    lines: dict[Task, list[int]] = {}
    for task, count in lines_of(tasks_of(options), counts_of(options), MAX_WORKERS):
        lines.setdefault(task, []).append(count)
    cases = [case for task, counts in lines.items() for case in cases_of(task, counts, options.interval, options.seeds)]
    runs = Runs()
    if not options.kept:
        make(cases, runs, options.processes)
    rows = [
        row(task, counts, count, options.interval, seeds_of(task, counts, count, options, runs), runs)
        for task, counts in lines.items()
        for count in counts
    ]
    write(
        "averaging",
        f"Workers against loops at equal samples, with a push every {options.interval:,} vertices",
        rows,
        [
            "medians of this many seeds after the program's own epochs; accuracy in %, or loss; ±: half of the range "
            "between the worst and the best seed, of the loop and of the workers",
            f"real master, sessions, training and merges; time is simulated: {EXEC_S * 1e3:g} ms a vertex, speeds "
            f"log-normal (sigma 0.3), and a push costs {BUDGET:.0%} of the time of {options.interval:,} vertices",
            "loop: the same samples by one worker that is never killed; loop × W: a batch W times as large, at the "
            f"best of {', '.join(f'{rate:g}' for rate in RATES)} times the program's rate "
            f"(clicks, Gowalla: up to {WIDE[-1]:g}), communication left out",
            "epochs are evaluated without their tails (averaging_tails.md); the last one has no tail anyway",
            f"asked: workers that were requested, of W wanted: as many as train {STEPS_EACH} batches each, at least "
            "four",
            "killed: lives exponential, on average a third of a worker's share of the run, half of them without grace",
            "same time: the loop's metric when the workers without kills had finished, if it had ended an epoch; lag: "
            "their largest shortfall against the loop, or against fewer workers, at the end of an epoch, after the "
            f"first {WARM:.0%} of the others' time (median of the seeds); faster: the loop's time over theirs",
        ],
    )
    for task, counts in lines.items():
        plot(task, counts, options.interval, runs)


def cases_of(task: Task, counts: Sequence[int], interval: int, seeds: int) -> Iterator[Case]:
    """Yield the runs that a task's lines of the table need; loops with a large batch are tuned with the first seed."""
    for seed in range(seeds):
        yield loop(task, seed)
        for count in counts:
            for kills in (False, True):
                yield Case(task.name, count, interval, kills, seed)
    for count in counts:
        for rate in task.loop_rates:
            yield loop(task, 0, count, rate)


def seeds_of(task: Task, counts: Sequence[int], count: int, options: Namespace, runs: Runs) -> int:
    """Return the number of seeds for which all runs of a line of the table are kept."""
    fewer = [each for each in counts if each <= count]
    seeds = 0
    while seeds < options.seeds and all(case in runs for case in cases_of(task, fewer, options.interval, seeds + 1)):
        seeds += 1
    return seeds


def half_range(values: Sequence[float], task: Task) -> float | None:
    """Return half of the range of some values, as the table shows it; None for a single value."""
    return task.shown((max(values) - min(values)) / 2) if len(values) > 1 else None


def loop(task: Task, seed: int, batches: int = 1, rates: float = 1.0) -> Case:
    """Return the case of the sequential loop at equal samples, with a larger batch and a larger learning rate."""
    return Case(task.name, 1, seed=seed, batches=batches, rates=rates)


def tuned(task: Task, count: int, runs: Runs) -> Case:
    """Return the loop with a batch `count` times as large, at the best of its learning rates."""
    return max((loop(task, 0, count, rate) for rate in task.loop_rates), key=lambda case: task.sign * runs[case].final)


def make(cases: Sequence[Case], runs: Runs, processes: int) -> None:
    """Play the cases that are not kept yet, in parallel."""
    missing = [case for case in dict.fromkeys(cases) if case not in runs]
    # One thread each: runs already fill the cores. Spawned, because a fork of a process with torch's threads may hang.
    with (
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        playing = {pool.submit(play, case): case for case in missing}
        for done in as_completed(playing):
            case = playing[done]
            runs.keep(case, done.result())
            print(f"{case}: {[point.value for point in runs[case].points]}", flush=True)


def row(task: Task, counts: Sequence[int], count: int, interval: int, seeds: int, runs: Runs) -> dict[str, Cell]:
    """Return a line of the table: a task and a number of workers."""
    smaller = [1, *(fewer for fewer in counts if fewer < count)]
    loops = [runs[loop(task, seed)] for seed in range(seeds)]
    larger = tuned(task, count, runs)
    curves = {
        kills: [runs[Case(task.name, count, interval, kills, seed)] for seed in range(seeds)] for kills in (False, True)
    }
    shown = {kills: statistics.median(curve.final for curve in curves[kills]) for kills in (False, True)}
    pairs = list(zip(curves[False], loops, strict=True))
    return {
        "task": task.name,
        "W": count,
        "seeds": seeds,
        "loop": task.shown(statistics.median(curve.final for curve in loops)),
        "±": half_range([curve.final for curve in loops], task),
        "loop × W": task.shown(runs[larger].final),
        "its rate": larger.rates,
        "workers": task.shown(shown[False]),
        "± ": half_range([curve.final for curve in curves[False]], task),
        "killed": task.shown(shown[True]),
        "asked": statistics.median(curve.lives for curve in curves[False]),
        "lives": statistics.median(curve.lives for curve in curves[True]),
        "same time": task.shown(statistics.median(one.at(many.points[-1].time_s) for many, one in pairs))
        if all(many.points[-1].time_s >= one.points[0].time_s for many, one in pairs)
        else None,
        "lag": task.shown(max(0.0, *(behind(task, count, fewer, interval, seeds, runs) for fewer in smaller))),
        "faster": statistics.median(one.points[-1].time_s / many.points[-1].time_s for many, one in pairs),
    }


def behind(task: Task, count: int, fewer: int, interval: int, seeds: int, runs: Runs) -> float:
    """Return the median of the largest shortfall against `fewer` workers, without kills."""
    pairs = [
        [
            loop(task, seed) if workers == 1 else Case(task.name, workers, interval, seed=seed)
            for workers in (count, fewer)
        ]
        for seed in range(seeds)
    ]
    return statistics.median(lag(task, runs[many], runs[few]) for many, few in pairs)


def lag(task: Task, many: Curve, one: Curve) -> float:
    """Return the largest shortfall of a run against another at the same time, 0 if it is never worse."""
    begun = max(WARM * one.points[-1].time_s, one.points[0].time_s)
    behind = (task.sign * (one.at(p.time_s) - p.value) for p in many.points if p.time_s >= begun)
    return max(0.0, *behind, 0.0)


def plot(task: Task, counts: Sequence[int], interval: int, runs: Runs) -> None:
    """Draw the metric of the first seed over simulated time, and over the share of the samples."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    lines = [("1 worker", "-", runs[loop(task, 0)])]
    for count in counts:
        for kills, style in ((False, "-"), (True, ":")):
            name = f"{count} workers{', killed' if kills else ''}"
            lines.append((name, style, runs[Case(task.name, count, interval, kills, 0)]))
    for name, style, curve in lines:
        values = [task.shown(point.value) for point in curve.points]
        axes[0].plot([point.time_s for point in curve.points], values, style, label=name)
        axes[1].plot([(k + 1) / len(values) for k in range(len(values))], values, style)
    axes[0].set(xscale="log", xlabel="simulated seconds", ylabel=task.metric)
    axes[1].set(xlabel="share of the samples")
    axes[0].legend()
    figure.suptitle(task.name)
    figure.savefig(results() / f"averaging_{Path(task.program).stem}{task.suffix}.png", dpi=80)
