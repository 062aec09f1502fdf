"""Measure the time in which workers reach the final metric of one worker: they run for as many epochs as that takes.

    GRIDML_DATA=DIR python -m benchmarks.averaging.time [--workers 4,16,64] [--task NAME ...] [--longest 4]

Runs are made like those of `benchmarks.averaging`, and kept with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.averaging.comparison import loop, make, tuned
from benchmarks.averaging.options import counts_of, lines_of, parser, tasks_of
from benchmarks.averaging.runs import EXEC_S, SIGMA, Case, Curve, Point, Runs, Task, push_s
from benchmarks.table import Cell, write
from master.simulation.scenario import MachineSpeeds
from master.store.settings import STEPS_EACH
from master.telemetry.worth import MIN_WORKERS

LONGER = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # times the program's epochs
NEAR = 0.01  # of the loop's final metric
MAX_WORKERS = 16  # of tasks whose whole tensors are averaged


def main() -> None:
    given = parser("Measure the time in which workers reach the final metric of one worker.", "4,16,64")
    given.add_argument(
        "--longest", type=float, default=4.0, help="the longest run, in multiples of the program's epochs"
    )
    options = given.parse_args()
    tasks = tasks_of(options)
    pairs = lines_of(tasks, counts_of(options), MAX_WORKERS)
    longer = [times for times in LONGER if times <= options.longest]
    runs = Runs()
    larger = [loop(task, 0, count, rate) for task, count in pairs for rate in task.loop_rates]
    make([*(loop(task, 0) for task in tasks), *larger], runs, options.processes)
    for times in longer:
        open_pairs = [pair for pair in pairs if first(*pair, longer, 0.0, runs) is None]
        make([run_of(*pair, times) for pair in open_pairs], runs, options.processes)
    write(
        "averaging_time",
        "The time in which workers reach the final metric of one worker",
        [row(task, count, longer, runs) for task, count in pairs],
        [
            "epochs: times the program's own, in the shortest run that reached the loop's final metric, of "
            f"{', '.join(f'{times:g}' for times in longer)}; empty: none did, and best is the best final metric",
            f"faster: the loop's time over the time of the first epoch's end that is as good; near: over that of the "
            f"first within {NEAR:.0%} of it",
            "elastic: the metric at that time (if none reached it, at the end of the longest run) of a synchronous "
            "loop on the same machines that is never killed, waits for the slowest at each step and exchanges the "
            "content of a push in a push's time; the better one of the program's batch shared, and of W such "
            "batches at the best rate",
            "all workers are requested, however short a run is (--steps-each 0)",
            "one seed, no kills, and times as in averaging.md. Checkpoint-and-restart of one worker is left out: "
            "it is no faster than the loop, which is never killed",
        ],
    )


def run_of(task: Task, count: int, times: float) -> Case:
    """Return the run of several times the program's epochs, with all requested workers."""
    epochs = None if times == 1 else round(task.epochs * times)
    return Case(task.name, count, epochs=epochs, steps_each=STEPS_EACH if count <= MIN_WORKERS else 0)


def first(task: Task, count: int, longer: Sequence[float], within: float, runs: Runs) -> tuple[float, float] | None:
    """Return (times the program's epochs, seconds) of the shortest run that is as good as the loop, or `within` a share
    of it; None if no run is."""
    final = runs[loop(task, 0)].final
    goal = final * (1 - task.sign * within)
    for times in longer:
        case = run_of(task, count, times)
        if case in runs:
            for point in runs[case].points:
                if task.sign * point.value >= task.sign * goal:
                    return times, point.time_s
    return None


def row(task: Task, count: int, longer: Sequence[float], runs: Runs) -> dict[str, Cell]:
    """Return a line of the table."""
    one = runs[loop(task, 0)]
    cases = [case for times in longer if (case := run_of(task, count, times)) in runs]
    reached, near = (first(task, count, longer, within, runs) for within in (0.0, NEAR))
    end_s = reached[1] if reached else runs[cases[-1]].points[-1].time_s
    best = max(task.sign * runs[case].final for case in cases) * task.sign
    return {
        "task": task.name,
        "W": count,
        "loop": task.shown(one.final),
        "its s": one.points[-1].time_s,
        "epochs": reached[0] if reached else None,
        "s": end_s,
        "faster": one.points[-1].time_s / reached[1] if reached else None,
        "near": one.points[-1].time_s / near[1] if near else None,
        "best": task.shown(best),
        "elastic": task.shown(elastic(task, count, end_s, runs)),
    }


def elastic(task: Task, count: int, time_s: float, runs: Runs) -> float:
    """Return the metric of synchronous training on `count` machines at a moment; before the first epoch's end, its
    metric."""
    shared = synchronous(task, count, task.batch / count, runs[loop(task, 0)])
    whole = synchronous(task, count, task.batch, runs[tuned(task, count, runs)])
    return max((curve.at(time_s) for curve in (shared, whole)), key=lambda value: task.sign * value)


def step_s(each: float, slowest: float) -> float:
    """Return the seconds of a step in which each machine trains `each` vertices and exchanges the content of a push."""
    return each * EXEC_S / slowest + push_s(Case.interval)


def synchronous(task: Task, count: int, each: float, curve: Curve) -> Curve:
    """Return a loop's curve with the times of `count` machines that each train `each` vertices of every step."""
    speeds = MachineSpeeds(sigma=SIGMA)
    slowest = min(speeds.of(slot, 0).speed for slot in range(count))
    epoch_s = step_s(each, slowest) * task.vertices / (each * count)
    return Curve(tuple(Point((k + 1) * epoch_s, point.value) for k, point in enumerate(curve.points)), count)


if __name__ == "__main__":
    main()
