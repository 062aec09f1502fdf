"""Compare what runs say that their workers are worth with what they turn out to be worth.

    GRIDML_DATA=DIR python -m benchmarks.averaging.worth [--task NAME ...] [--kept]

Workers are worth the time of a loop that ends at the same metric, over their own time. Loops of every shorter length,
each with a schedule of its own, give the loop's time for a metric, interpolated between whole epochs. Runs are kept in
`benchmarks/results/averaging_worth.jsonl`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.averaging.comparison import make
from benchmarks.averaging.options import parser, tasks_of
from benchmarks.averaging.pacing import ADDED, variant
from benchmarks.averaging.runs import Case, Curve, Runs, Task
from benchmarks.table import Cell, results, write
from master.telemetry.worth import ADDED_LOSS, AVERAGED_LOSS

FOUND_ON = ("MNIST, LeNet", "Bible, transformer")
JUDGED_ON = (
    "MNIST, LeNet, Adam",
    "MNIST, perceptron",
    "Bible, small transformer",
    "Clicks, two towers",
    "CIFAR-10, GroupNorm",
    "CIFAR-10, AdamW",
)
SHARED = ("MNIST, LeNet", "MNIST, LeNet, Adam", "MNIST, perceptron", "CIFAR-10, GroupNorm", "CIFAR-10, AdamW")


def main() -> None:
    given = parser("Compare what workers are said to be worth with what they are worth.")
    given.add_argument("--kept", action="store_true", help="use the kept runs and make no new ones")
    options = given.parse_args()
    tasks, runs = tasks_of(options, (*FOUND_ON, *JUDGED_ON)), Runs(results() / "averaging_worth.jsonl")
    if not options.kept:
        make([case for task in tasks for case in (*loops(task), *cases(task))], runs, options.processes)
    write(
        "averaging_worth",
        "What workers are worth, as runs say and as measured",
        [row(task, case, runs) for task in tasks for case in cases(task) if case in runs],
        [
            "said: in the report of the run; worth: the time of a loop that ends at the same metric over the workers' "
            "time; loops of each number of whole epochs, with schedules of their own, interpolated. The best of the "
            "loops up to a length counts; < and >: below the shortest and above the best loop",
            f"found on {' and '.join(FOUND_ON)}: {AVERAGED_LOSS:g} where replicas are averaged, {ADDED_LOSS:g} where "
            "steps are added (LeNet alone); the other tasks judge them",
            "added: a push costs the time of 2 vertices, as in averaging_pacing.md; averaged: 1/33 of 1,024 vertices, "
            "as in averaging.md; lives a third of a share on average where workers are killed",
            "one seed, so that the worth of a run whose metric hardly changes from epoch to epoch is uncertain",
        ],
    )


def loops(task: Task) -> list[Case]:
    """Return the loops of all lengths up to the task's own."""
    return [Case(task.name, 1, epochs=epochs) for epochs in range(1, task.epochs + 1)]


def cases(task: Task) -> list[Case]:
    """Return the runs of several workers of a task."""
    averaged = Case(task.name, 4)
    made = [averaged, replace(averaged, kills=True), replace(averaged, workers=16, steps_each=0)]
    return made + [variant(task, count, ADDED, 0) for count in (4, 16) if task.name in SHARED]


def row(task: Task, case: Case, runs: Runs) -> dict[str, Cell]:
    """Return a line of the table."""
    curve = runs[case]
    said, (bound, worth) = curve.worth, measured(task, curve, runs)
    return {
        "task": task.name,
        "W": case.workers,
        "steps": "added" if case.travel_s != Case.travel_s else "averaged",
        "killed": "yes" if case.kills else "no",
        "final": task.shown(curve.final),
        "said": said,
        "worth": f"{bound}{worth:.2f}",
        "said / worth": None if said is None or bound else said / worth,
    }


def measured(task: Task, curve: Curve, runs: Runs) -> tuple[str, float]:
    """Return ("<", ">" or "", time of the loop that ends at the final metric of a run over the time of the run)."""
    made = [runs[case] for case in loops(task) if case in runs]
    best = np.maximum.accumulate([task.sign * loop.final for loop in made])
    times, final = [loop.points[-1].time_s for loop in made], task.sign * curve.final
    bound = "<" if final < best[0] else ">" if final > best[-1] else ""
    return bound, float(np.interp(final, best, times)) / curve.points[-1].time_s


if __name__ == "__main__":
    main()
