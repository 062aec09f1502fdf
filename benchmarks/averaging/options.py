"""Common command-line options of the benchmarks of averaging."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.averaging.runs import TASKS, Task

SMALL = "Adult, logistic regression"  # takes no torch


def parser(description: str, workers: str = "4,16") -> argparse.ArgumentParser:
    """A parser of the options that all have; `workers` is the default of `--workers`."""
    made = parser_of(description)
    made.add_argument("--workers", default=sized(workers, "2"), help="numbers of them, with commas between")
    made.add_argument("--task", action="append", choices=list(TASKS), help="only these; may be given again")
    made.add_argument("--processes", type=int, default=sized(os.cpu_count() or 1, 1), help="runs that are made at once")
    return made


def tasks_of(options: argparse.Namespace, usual: Iterable[str] = TASKS, small: str = SMALL) -> list[Task]:
    """The tasks that were asked for, otherwise the `usual` ones, or the `small` one. Ends the program where their data
    is not named."""
    if "GRIDML_DATA" not in os.environ and not smallest():
        raise SystemExit("GRIDML_DATA is not set; expected the folder that the programs of the tasks read from.")
    return [TASKS[name] for name in options.task or sized(list(usual), [small])]


def lines_of(tasks: Iterable[Task], counts: Iterable[int], most: int) -> list[tuple[Task, int]]:
    """Every task with every number of workers, more than `most` only where any number of them is asked for."""
    counts = list(counts)
    return [(task, count) for task in tasks for count in counts if count <= most or task.rows]


def counts_of(options: argparse.Namespace) -> list[int]:
    """The numbers of workers that were asked for."""
    return [int(count) for count in options.workers.split(",")]
