"""Compare one thread with two, and a stage's work in jobs with the same work whole, as a worker trains.

Variants take turns, each with a worker of its own (`benchmarks.graph_programs.one_worker`). Only training is timed: the
stages of all mini-batches of a pass. Ratios within a turn are the result. Two threads are faster only where two cores
are free: `cores` says how many the threads had. What two free cores allow at most follows from the CPU seconds of each
job, on one thread: those of a wave are shared by two threads, the longest first.

    python -m benchmarks.graph_programs.threads
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.arguments import numbers, sized, smallest
from benchmarks.graph_programs import texts
from benchmarks.graph_programs.against_tomotopy import SIZES as TOPICS
from benchmarks.graph_programs.against_tomotopy import module as topics
from benchmarks.graph_programs.example_mf import OURS as FACTORS
from benchmarks.graph_programs.example_mf import example
from benchmarks.graph_programs.example_mf import program as factors
from benchmarks.graph_programs.one_worker import OneWorker
from benchmarks.graph_programs.ratings import Ratings, drawn
from benchmarks.table import Cell, write
from gridml.engine import stage_jobs
from gridml.engine.stage_jobs import Division
from gridml.model.program import Program

USERS, ITEMS, RATINGS = sized((70_000, 10_000, 10_000_000), (200, 50, 4_000))
SIZES = sized((16, 16_000), (50,))
PASSES, WARM = sized((12, 2), (2, 1))


class Variant(NamedTuple):
    """How stages run."""

    name: str
    is_whole: bool  #: True: each stage is one job, as before there were threads
    threads: int


class Spent(NamedTuple):
    """Seconds of one pass's training."""

    wall_s: float
    cpu_s: float
    least_s: float  #: wall seconds on two free cores


VARIANTS = (
    Variant("whole, 1 thread", True, 1),
    Variant("jobs, 1 thread", False, 1),
    Variant("jobs, 2 threads", False, 2),
)


class TimedWorker(OneWorker):
    """A worker whose stages run as a variant says, and whose training is timed."""

    def __init__(self, program: Program, variant: Variant) -> None:
        super().__init__(program)
        self.engine._threads = variant.threads
        for stage in self.engine.stages if variant.is_whole else ():
            stage.division = Division.WHOLE
        self.spent: list[Spent] = []
        self._train = self.engine.train
        self.engine.train = self._timed  # type: ignore[method-assign, assignment]

    def _timed(self, start: int, stop: int, factor: float) -> None:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        self._train(start, stop, factor)
        self._wall_s += time.perf_counter() - wall_s
        self._cpu_s += time.process_time() - cpu_s

    def _do_all(self, calls: Sequence[Callable[[], None]], threads: int) -> None:
        """Time each job, on one thread."""
        took_s = []
        for call in calls:
            began = time.process_time()
            call()
            took_s.append(time.process_time() - began)
        self._saved_s += sum(took_s) - longest_of_two(took_s)

    def run_pass(self) -> None:
        self._wall_s = self._cpu_s = self._saved_s = 0.0
        do_all = stage_jobs.do_all
        if self.engine._threads == 1:
            stage_jobs.do_all = self._do_all
        try:
            super().run_pass()
        finally:
            stage_jobs.do_all = do_all
        self.spent.append(Spent(self._wall_s, self._cpu_s, self._cpu_s - self._saved_s))


def longest_of_two(took_s: Sequence[float]) -> float:
    """Return how long two threads take for jobs, the longest first."""
    threads = [0.0, 0.0]
    for each in sorted(took_s, reverse=True):
        threads[threads.index(min(threads))] += each
    return max(threads)


def ascending(ratings: Ratings) -> Ratings:
    """Return ratings of which each user's ascend by item, so that they can be cut into blocks."""
    user = np.repeat(np.arange(ratings.users), np.diff(ratings.offsets))
    order = np.lexsort((ratings.item, user))
    return ratings._replace(item=ratings.item[order], stars=ratings.stars[order])


def compared(name: str, edges: int, made: Callable[[], Program]) -> list[dict[str, Cell]]:
    """Return rows of the table for one program."""
    workers = {variant: TimedWorker(made(), variant) for variant in VARIANTS}
    for _ in range(PASSES):
        for worker in workers.values():
            worker.run_pass()
    one, two = (workers[variant].values for variant in VARIANTS[1:])
    same = all(one[of][f].tobytes() == two[of][f].tobytes() for of in one for f in one[of])
    assert same, "the number of threads changed the result"
    spent = {variant: worker.spent[WARM:] for variant, worker in workers.items()}
    rows: list[dict[str, Cell]] = []
    for variant, each in spent.items():
        turns = list(zip(spent[VARIANTS[0]], each, strict=True))
        walls = [before.wall_s / now.wall_s for before, now in turns]
        rows.append({
            "program": name,
            "stages": variant.name,
            "M edges per CPU-s": round(statistics.median(edges / now.cpu_s / 1e6 for now in each), 2),
            "CPU speed": round(statistics.median(before.cpu_s / now.cpu_s for before, now in turns), 3),
            "two cores allow": (
                round(statistics.median(now.cpu_s / now.least_s for now in each), 2) if variant.threads == 1 else None
            ),
            "wall speed": round(statistics.median(walls), 2),
            "best": round(max(walls), 2),
            "cores": round(statistics.median(now.cpu_s / now.wall_s for now in each), 2),
        })  # fmt: skip
    return rows


def main() -> None:
    numbers(__doc__)
    if not smallest() and not texts.are_there():
        print("skipped: not there: the texts: set GRIDML_DATA")
        return
    load = os.getloadavg()[0]
    module, ratings = example(FACTORS), ascending(drawn(USERS, ITEMS, RATINGS))
    rows: list[dict[str, Cell]] = []
    for size in SIZES:
        name = f"matrix factorisation, {size:,} users in a mini-batch"
        rows += compared(name, len(ratings.stars), partial(factors, module, ratings, replace(FACTORS, size=size)))
    found = texts.drawn() if smallest() else texts.films()
    for each in TOPICS:
        of_texts = partial(topics(each.topics).program, found, each.ours, 0)
        rows += compared(f"topics ({each.topics:,})", len(found.word), of_texts)
    write(
        "graph_threads",
        "Stages on one thread and on two",
        rows,
        [
            f"{len(ratings.stars):,} ratings of {USERS:,} users and {ITEMS:,} items, of each user by ascending item, "
            f"rank {module.RANK}; {len(found.word):,} tokens of films, all texts in one mini-batch; "
            f"medians of {PASSES - WARM} passes, in which the variants take turns",
            "CPU speed, wall speed: of the same training, whole on one thread, the median ratio within a turn; best: "
            "the largest of wall; two cores allow: how much faster the jobs of one thread would be on two free cores; "
            "cores: CPU seconds of a wall second",
            "whole: each stage is one job, as before there were threads; jobs: runs of texts and words, 2 x 2 blocks "
            "of ratings; mini-batches of few edges are not cut. One and two threads gave the same bits",
            f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


if __name__ == "__main__":
    main()
