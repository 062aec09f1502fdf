"""Common command-line options of the benchmarks of averaging."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.averaging.runs import SMALL_TASKS, TASKS, Task

SMALL = "Adult, logistic regression"  # does not import torch, which takes seconds


def parser(description: str, workers: str = "4,16") -> argparse.ArgumentParser:
    """Return a parser of the common options; `workers` is the default of `--workers`."""
    made = parser_of(description)
    made.add_argument("--workers", default=sized(workers, "2"), help="numbers of workers, separated by commas")
    made.add_argument("--task", action="append", choices=[*TASKS, *SMALL_TASKS], help="run only this task; repeatable")
    made.add_argument("--processes", type=int, default=sized(os.cpu_count() or 1, 1), help="runs in parallel")
    return made


def tasks_of(options: argparse.Namespace, usual: Iterable[str] = TASKS, small: str = SMALL) -> list[Task]:
    """Return the requested tasks; default: the `usual` ones, in the smallest form the `small` one. Exits if GRIDML_DATA
    is not set."""
    if "GRIDML_DATA" not in os.environ and not smallest():
        raise SystemExit("GRIDML_DATA is not set; expected the folder that the programs of the tasks read from.")
    return [(TASKS | SMALL_TASKS)[name] for name in options.task or sized(list(usual), [small])]


def lines_of(tasks: Iterable[Task], counts: Iterable[int], most: int) -> list[tuple[Task, int]]:
    """Return every task with every number of workers; only tasks that are merged by rows get more than `most`."""
    counts = list(counts)
    return [(task, count) for task in tasks for count in counts if count <= most or task.rows]


def counts_of(options: argparse.Namespace) -> list[int]:
    """Return the requested numbers of workers."""
    return [int(count) for count in options.workers.split(",")]
