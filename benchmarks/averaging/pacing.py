"""Measure interval, rate and batch together: 4 and 16 workers with cheap pushes, one of the three changed, and all.

    GRIDML_DATA=DIR python -m benchmarks.averaging.pacing [--workers 4,16] [--task NAME ...] [--seeds N] [--long]

A push costs as much time as 2 vertices, and workers are killed after a third of their share of the run on average. With
`--long` runs have 20 epochs, and are as gridml chooses; its table says what workers are worth. Runs are kept in
`benchmarks/results/averaging_runs.jsonl` by their configuration, so an interrupted comparison resumes, and its table
can be completed over several days.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from benchmarks.averaging.comparison import loop, make
from benchmarks.averaging.options import counts_of, parser, tasks_of
from benchmarks.averaging.runs import Case, Curve, Point, Runs, Task
from benchmarks.table import Cell, write
from gridml.engine.pace import STALENESS_STEP

FOUND_ON = ("MNIST, LeNet",)
JUDGED_ON = (
    "Bible, small transformer",
    "MNIST, perceptron",
    "MNIST, LeNet, Adam",
    "CIFAR-10, GroupNorm",
    "CIFAR-10, AdamW",
)
CHEAP = 67  # vertices between pushes of 2 vertices that take 3% of the time
TRAVEL_S = 0.001
# A run of seconds: no worker is killed, and the master looks for messages every 5 ms, not every 17 vertices.
SHORT = ("Bible, small transformer",)
ADDED = "as gridml chooses: steps added"
BEFORE = "averaged: a push every 512/√W vertices"
CHOICES: dict[str, dict[str, int | float]] = {
    ADDED: {},
    BEFORE: {"every": 0},
    "interval: with each batch of the program": {"every": 1},
    "rate: the program's": {"every": 0, "power": 0.0},
    "batch: the program's": {"every": 0, "parts": 1},
    "interval and rate": {"every": 1, "power": 0.0},
    "interval and batch": {"every": 1, "parts": 1},
}


LONG_EPOCHS = 20
FASTER = {ADDED: "faster, added", BEFORE: "faster, averaged"}


def main() -> None:
    given = parser("Measure interval, rate and batch together.")
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--only", nargs="*", default=list(CHOICES), metavar="CHOICE", help="the choices to make runs of")
    given.add_argument("--long", action="store_true", help="measure longer runs")
    given.add_argument("--kept", action="store_true", help="use the kept runs and make no new ones")
    options = given.parse_args()
    tasks, counts, seeds = tasks_of(options, (*FOUND_ON, *JUDGED_ON)), counts_of(options), range(options.seeds)
    runs = Runs()
    if options.long:
        measure_long(tasks, counts, seeds, runs, 0 if options.kept else options.processes)
        return
    lines = [
        (task, count, choice) for task in tasks for count in counts for choice in options.only if fits(task, choice)
    ]
    cases = [case for seed in seeds for line in lines for case in (loop(line[0], seed), variant(*line, seed))]
    if not options.kept:
        make(list(dict.fromkeys(cases)), runs, options.processes)
    rows: list[dict[str, Cell]] = []
    for task in tasks:
        alone = [runs[case] for seed in seeds if (case := loop(task, seed)) in runs]
        for count in counts:
            row: dict[str, Cell] = {"task": task.name, "W": count}
            if alone:
                row["loop"] = shown(task, alone)
            for choice in CHOICES:
                made = [runs[case] for seed in seeds if (case := variant(task, count, choice, seed)) in runs]
                if made and fits(task, choice):
                    row[choice] = shown(task, made)
                if made and alone and choice in FASTER:
                    row[FASTER[choice]] = round(
                        statistics.mean(each.points[-1].time_s for each in alone)
                        / statistics.mean(each.points[-1].time_s for each in made),
                        1,
                    )
            if row.keys() & CHOICES.keys():
                rows.append(row)
    write(
        "averaging_pacing",
        "Accuracy, loss or error of workers with cheap pushes, by interval, rate and batch",
        rows,
        [
            "accuracy in %, otherwise loss or error, after the program's own epochs; means of the seeds, and their "
            "number; a push costs the time of 2 vertices; workers are killed after a third of their share on average",
            f"short intervals were better on {', '.join(FOUND_ON)} over 20 epochs and in prototypes that are not here, "
            "and are judged on the other tasks",
            "no worker is killed where a share lasts few seconds (Bible): machines would mostly boot, at 1 s each",
            "rate: not cut by the root of the batch's share; batch: workers keep that of the program; where a program "
            "keeps both anyway, these columns are empty",
            "faster: the loop's time for the same epochs over that of the workers",
        ],
    )


def measure_long(tasks: list[Task], counts: list[int], seeds: range, runs: Runs, processes: int) -> None:
    """Write the table of longer runs; with 0 `processes` from the kept runs alone."""
    alone = {task: [replace(loop(task, seed), epochs=LONG_EPOCHS) for seed in seeds] for task in tasks}
    shared = {
        (task, count): [replace(variant(task, count, ADDED, seed), epochs=LONG_EPOCHS) for seed in seeds]
        for task in tasks
        for count in counts
    }
    if processes:
        make([case for cases in (*alone.values(), *shared.values()) for case in cases], runs, processes)
    rows: list[dict[str, Cell]] = []
    for (task, count), cases in shared.items():
        loops, made = ([runs[case] for case in each if case in runs] for each in (alone[task], cases))
        if loops and made:
            both = mean_curve(loops), mean_curve(made)
            rows.append(
                {
                    "task": task.name,
                    "W": count,
                    "loop": shown(task, loops),
                    "workers": shown(task, made),
                    "faster": round(both[0].points[-1].time_s / both[1].points[-1].time_s, 1),
                    "worth": round(worth(task, *both), 1),
                }
            )
    write(
        "averaging_long",
        f"Workers with cheap pushes over {LONG_EPOCHS} epochs",
        rows,
        [
            "accuracy in %, otherwise loss; means of the seeds, and their number; a push costs the time of 2 vertices, "
            "and workers are killed after a third of their share on average, but on the Bible (a share lasts seconds)",
            "faster: the loop's time for the same epochs over that of the workers",
            "worth: the loop's time over the workers' to the final metric of the one that ends behind, in these runs; "
            "a loop whose learning rate falls over fewer epochs may reach it earlier",
        ],
    )


def mean_curve(curves: list[Curve]) -> Curve:
    """Return the mean course of runs with the same epochs."""
    points = zip(*(curve.points for curve in curves), strict=True)
    means = [
        Point(statistics.mean(p.time_s for p in at), statistics.mean(p.value for p in at)) for at in map(list, points)
    ]
    return Curve(tuple(means), round(statistics.mean(curve.lives for curve in curves)))


def worth(task: Task, alone: Curve, workers: Curve) -> float:
    """Return the loop's time over that of workers to the final metric of the one that ends behind."""
    goal = min(task.sign * alone.final, task.sign * workers.final)
    return reached_s(task, alone, goal) / reached_s(task, workers, goal)


def reached_s(task: Task, curve: Curve, goal: float) -> float:
    """Return when a curve first reaches `goal`, in seconds, interpolated between epochs."""
    before = Point(0.0, -task.sign * math.inf)
    for point in curve.points:
        if task.sign * point.value >= goal:
            if not math.isfinite(before.value):
                return point.time_s
            share = (goal - task.sign * before.value) / (task.sign * (point.value - before.value))
            return before.time_s + share * (point.time_s - before.time_s)
        before = point
    return math.inf


def fits(task: Task, choice: str) -> bool:
    """Return whether a choice changes anything: programs of rows have no rate and share no batch."""
    return not (task.rows and {"power", "parts"} & CHOICES[choice].keys())


def shown(task: Task, made: list[Curve]) -> str:
    """Return the mean of the final metrics, and the number of runs."""
    return f"{task.shown(statistics.mean(each.final for each in made))} ({len(made)})"


def variant(task: Task, workers: int, choice: str, seed: int) -> Case:
    """Return the run of a choice. Its `every` is 1 for a push with each batch of the program, 0 for one as the merge
    rule wants where pushes are dear."""
    changes = dict(CHOICES[choice])
    if "every" in changes:
        changes["every"] = task.batch if changes["every"] else round(STALENESS_STEP / workers**0.5)
    case = Case(task.name, workers, CHEAP, kills=True, seed=seed, steps_each=0, travel_s=TRAVEL_S)
    if task.name in SHORT:
        case = replace(case, kills=False, turn_s=0.005)
    return replace(case, **changes)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
