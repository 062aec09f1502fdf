"""Measure the gain of the mean over the tail of an epoch: every epoch is evaluated with and without it.

    GRIDML_DATA=DIR python -m benchmarks.averaging.tails [--workers 4,16] [--task NAME ...]

Runs are made like those of `benchmarks.averaging`, but not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple
from unittest import mock

from benchmarks.averaging.options import counts_of, parser, tasks_of
from benchmarks.averaging.runs import TASKS, Case, Task, play
from benchmarks.table import Cell, write
from master.evaluation.evaluator import Evaluated, InlineEvaluator, Subject

CHOSEN_ON = ("MNIST, LeNet", "CIFAR-10, GroupNorm", "Bible, transformer", "Clicks, two towers")  # with seed 0
SEED = 1


class Pair(NamedTuple):
    """The metric of an epoch's last version alone, and of the mean over its tail."""

    alone: float
    tail: float


def main() -> None:
    options = parser("Measure the gain of the mean over the tail of an epoch.").parse_args()
    tasks = [task for task in tasks_of(options, small=CHOSEN_ON[0]) if not task.rows]
    cases = [
        Case(task.name, count, kills=kills, seed=SEED, tail=True)
        for task in tasks
        for count in counts_of(options)
        for kills in (False, True)
    ]
    seen: dict[Case, list[Pair]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        under_way = {pool.submit(pairs, case): case for case in cases}
        for future in as_completed(under_way):
            seen[under_way[future]] = future.result()
            print(f"{len(seen)} of {len(cases)} runs", flush=True)
    write(
        "averaging_tails",
        "The gain of the mean over the tail of an epoch",
        [row(case, seen[case]) for case in cases],
        [
            f"one seed, {SEED}; the rule was chosen with another one, on {', '.join(CHOSEN_ON)}; lives, pushes and "
            "epochs as in averaging.md; array fields have no tails",
            "accuracy and recall in %, or the loss: means over all epochs but the last, which has no tail, "
            "because there the learning rate has fallen to zero",
            "better: epochs that are better with their tail, of those that differ; falls: the largest worsening "
            "from one epoch to the next",
        ],
    )


def pairs(case: Case) -> list[Pair]:
    """Play a run to its end, and evaluate each epoch both ways."""
    seen: list[Pair] = []
    evaluate, metric = InlineEvaluator.evaluate, TASKS[case.task].metric

    def both(here: InlineEvaluator, subject: Subject, limit_s: float) -> Evaluated:
        ways = [evaluate(here, each, limit_s) for each in (replace(subject, tail=()), subject)]
        seen.append(Pair(*(float(evaluated.metrics[metric]) for evaluated in ways)))
        return ways[1]

    with mock.patch.object(InlineEvaluator, "evaluate", both):
        play(case)
    return seen


def row(case: Case, seen: Sequence[Pair]) -> dict[str, Cell]:
    """Return the table's line of a run."""
    task = TASKS[case.task]
    ahead = [task.sign * (pair.tail - pair.alone) for pair in seen]
    alone, tail = zip(*seen, strict=True)
    return {
        "task": task.name,
        "W": case.workers,
        "killed": "yes" if case.kills else "no",
        "alone": task.shown(fmean(alone[:-1])),
        "tail": task.shown(fmean(tail[:-1])),
        "better": f"{sum(each > 0 for each in ahead)} of {sum(each != 0 for each in ahead)}",
        "falls": task.shown(fall(task, alone)),
        "with tail": task.shown(fall(task, tail)),
    }


def fall(task: Task, values: Sequence[float]) -> float:
    """Return the largest loss from one epoch to the next."""
    return max(0.0, *(task.sign * (before - after) for before, after in pairwise(values)))


if __name__ == "__main__":
    main()
