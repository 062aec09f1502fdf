"""Measure the choices behind the defaults of averaging: merge rules, shares of a batch and learning rates.

    GRIDML_DATA=DIR python -m benchmarks.averaging.choices [--workers 4] [--task NAME ...]

Runs are made like those of `benchmarks.averaging`, and kept with them.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.averaging.comparison import loop, make
from benchmarks.averaging.options import counts_of, parser, tasks_of
from benchmarks.averaging.runs import TASKS, Case, Runs, Task
from benchmarks.table import Cell, write

CHOSEN_ON = ("MNIST, LeNet", "Bible, transformer")  # and judged on the other tasks
BUFFERING = ("fedbuff", "nesterov", "clipped")  # rules that take whole pushes, and no rows
DEFAULT = "stale_mean, a quarter of the batch, rate by its root"
CHOICES: dict[str, dict[str, str | int | float]] = {
    DEFAULT: {},
    "the program's batch and rate": {"parts": 1},
    "half of the batch, rate by its root": {"parts": 2},
    "a quarter of the batch, rate unchanged": {"power": 0.0},
    "a quarter of the batch, rate in proportion": {"power": 1.0},
    "twice the program's epochs": {"times": 2},
    **{f"a push every {interval:,} vertices": {"interval": interval} for interval in (128, 512, 2_048, 8_192)},
    **{f"merged by {rule}": {"rule": rule} for rule in ("mean", "fedbuff", "easgd", "nesterov", "clipped", "add")},
}


def main() -> None:
    options = parser("Measure the choices behind the defaults of averaging.", workers="4").parse_args()
    tasks, (count,) = tasks_of(options, CHOSEN_ON), counts_of(options)
    runs = Runs()
    variants = {
        (choice, task.name): variant(task, count, changes)
        for choice, changes in CHOICES.items()
        for task in tasks
        if not (task.rows and (changes.get("rule") in BUFFERING or {"parts", "power"} & changes.keys()))
    }
    alone = {rates: [loop(task, 0, rates=rates) for task in tasks] for rates in (1.0, 0.5)}
    make([*(case for loops in alone.values() for case in loops), *variants.values()], runs, options.processes)
    rows: list[dict[str, Cell]] = [
        {
            "choice": choice,
            **{
                task.name: task.shown(runs[variants[choice, task.name]].final)
                for task in tasks
                if (choice, task.name) in variants
            },
        }
        for choice in CHOICES
    ]
    for rates, loops in alone.items():
        shown = {case.task: TASKS[case.task].shown(runs[case].final) for case in loops}
        rows.append({"choice": f"one worker, {rates:g} times the program's rate", **shown})
    write(
        "averaging_choices",
        f"Accuracy or loss of {count} workers for each choice, one thing changed at a time",
        rows,
        [
            "accuracy in %, or loss, after the program's own epochs; one seed, no kills, a push about every 1,024 "
            "vertices by default, which costs 3% of the time at every interval; "
            "none is longer than a worker's share of an epoch",
            "empty: rules that hold pushes back do not merge rows, and f keeps the program's batch where it moves rows "
            "itself",
            "seeds differ by about half a point of accuracy and 0.02 of the loss, so smaller differences are noise",
        ],
    )


def variant(task: Task, workers: int, changes: dict[str, str | int | float]) -> Case:
    """Return the run of a choice: a case with some fields changed, or with `times` the program's epochs."""
    if "times" in changes:
        return Case(task.name, workers, epochs=task.epochs * int(changes["times"]))
    return replace(Case(task.name, workers), **changes)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
