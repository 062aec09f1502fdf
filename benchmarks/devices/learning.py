"""Train simulated workers at real length on the device, many runs at once, against the loop at equal samples.

Runs are those of `benchmarks.averaging`, kept with them; only the device differs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.averaging.runs import TASKS, Case, Curve, play
from benchmarks.devices.measured import Line, Place

EPOCHS = 20
SEEDS = 3
COUNTS = (4, 16)
ASKED = ("CIFAR-10, GroupNorm", "CIFAR-10, BatchNorm", "MNIST, LeNet", "Bible, transformer")


@dataclass(frozen=True)
class Played:
    """The runs of one line: a task, a number of workers, kills or none."""

    task: str
    workers: int
    kills: bool


def lines(place: Place) -> Iterator[Line]:
    began = time.monotonic()
    names = ("MNIST, LeNet",) if place.tiny else ASKED
    seeds = 1 if place.tiny else SEEDS
    counts = (2,) if place.tiny else COUNTS
    wanted = [Played(name, count, count > 1) for name in names for count in (1, *counts)]
    os.environ["OMP_NUM_THREADS"] = "1"
    finals: dict[Played, list[Curve]] = {}
    processes = max(1, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        playing: dict[Future[Curve], Played] = {}
        for each in wanted:
            for seed in range(seeds):
                epochs = 2 if place.tiny else EPOCHS
                case = Case(each.task, each.workers, kills=each.kills, seed=seed, epochs=epochs)
                playing[pool.submit(play_on, case, place.device)] = each
        try:
            for done in as_completed(playing, timeout=place.limit_s):
                each = playing[done]
                finals.setdefault(each, []).append(done.result())
                loop = finals.get(Played(each.task, 1, False), [])
                if len(finals[each]) == seeds and len(loop) == seeds:
                    ready = [each] if each.workers > 1 else [p for p in finals if p.task == each.task]
                    for line in ready:
                        if line.workers > 1 and len(finals[line]) == seeds:
                            yield compared(line, finals[line], loop, time.monotonic() - began)
        except TimeoutError:
            left = sum(not future.done() for future in playing)
            yield Line("learn", "runs that did not end in time", f"{left} of {len(playing)}")
            for process in pool._processes.values():  # no public call ends what is running
                process.kill()


def compared(line: Played, curves: list[Curve], loop: list[Curve], took_s: float) -> Line:
    """A line of the table."""
    task = TASKS[line.task]
    mine, theirs = ([task.shown(curve.final) for curve in of] for of in (curves, loop))
    times = [one.points[-1].time_s / many.points[-1].time_s for many, one in zip(curves, loop, strict=True)]
    return Line(
        "learn",
        f"{line.task}: {line.workers} workers with kills against the loop, {len(loop[0].points)} epochs, {task.metric}",
        f"{statistics.mean(mine):.2f} ± {half(mine):.2f} / {statistics.mean(theirs):.2f} ± {half(theirs):.2f}, in "
        f"1/{statistics.median(times):.1f} of the loop's time (simulated); all runs so far took {took_s:.0f} s",
    )


def half(values: list[float]) -> float:
    """Return half of what lies between the least and the most."""
    return (max(values) - min(values)) / 2


def play_on(case: Case, device: str) -> Curve:
    return play(case, "cuda:0" if device == "cuda" else "cpu")
