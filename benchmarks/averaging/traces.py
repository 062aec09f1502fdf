"""Compare workers on machines from recorded traces with other uses of the same machines.

    GRIDML_DATA=DIR python -m benchmarks.averaging.traces [--workers 4,16] [--task NAME ...] [--trace NAME ...]

A loop is assumed to last eight hours of a trace; everything else scales with that. Runs are kept with those of
`benchmarks.averaging`. Two alternatives are computed from the loops' curves and the trace:

- checkpoint and restart: one worker at a time, on the machine that came first, with a checkpoint where a worker would
  push; if a machine is taken without warning, the work since its last checkpoint is lost;
- elastic: synchronous training on up to W machines. When one of them leaves or is replaced, all restart, which takes
  the time of a start; no work is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.arguments import sized
from benchmarks.averaging.comparison import lag, loop, make, tuned
from benchmarks.averaging.options import counts_of, parser, tasks_of
from benchmarks.averaging.runs import (
    BOOT_S,
    BUDGET,
    EXEC_S,
    SIGMA,
    TRACES,
    Case,
    Curve,
    Point,
    Runs,
    Task,
    read_events,
    speedup,
)
from benchmarks.averaging.time import step_s
from benchmarks.table import Cell, write
from master.simulation.scenario import MachineSpeeds

SMALL, MAX_WORKERS_ON_SMALL = "AWS V100", 4  # a trace of few machines


@dataclass(frozen=True, eq=False)
class Stay:
    """The presence of a machine in simulated time."""

    start_s: float
    end_s: float
    speed: float  #: relative to the typical machine


def main() -> None:
    given = parser("Compare workers on machines from recorded traces with other uses of the same machines.")
    given.add_argument("--trace", action="append", choices=list(TRACES), help="run only this trace; repeatable")
    options = given.parse_args()
    tasks, counts = tasks_of(options), counts_of(options)
    lines = [
        (trace, task, count)
        for trace in options.trace or sized([*TRACES], ["EC2 p3"])
        for task in tasks
        for count in counts
        if trace != SMALL or count <= MAX_WORKERS_ON_SMALL
    ]
    runs = Runs()
    loops = [loop(task, 0) for task in tasks]
    larger = [loop(task, 0, count, rate) for task in tasks for count in counts for rate in task.loop_rates]
    make(
        [*loops, *larger, *(Case(task.name, count, trace=trace) for trace, task, count in lines)],
        runs,
        options.processes,
    )
    write(
        "averaging_traces",
        "Workers on machines of real traces, at equal wall clock",
        [row(*line, runs) for line in lines],
        [
            "hours: of the trace, until the workers had trained the program's own epochs (an uninterrupted loop takes "
            "8); lives: workers that were used up; accuracy in %, or loss, at that time",
            "restart, elastic (the better of two): their metric at the same time or, before the end of their first "
            "epoch, at that end. Lag: the largest shortfall of the workers against any of these at the end of an epoch",
            "one seed; machines' speeds log-normal (sigma 0.3), those of restart typical; half of the machines of a "
            "trace are taken without warning",
            "traces: EC2 p3 and GCP V100 of Bamboo (Thorpe et al., NSDI 2023), AWS V100 of SkyPilot's spot traces",
        ],
    )


def row(trace: str, task: Task, count: int, runs: Runs) -> dict[str, Cell]:
    """Return a line of the table."""
    workers = runs[Case(task.name, count, trace=trace)]
    stays = stays_of(trace, task)
    end_s = workers.points[-1].time_s
    alone, together = restarted(stays, task, runs[loop(task, 0)]), elastic(stays, task, count, runs)
    best = max((curve.at(end_s) for curve in together), key=lambda value: task.sign * value)
    return {
        "trace": trace,
        "task": task.name,
        "W": count,
        "lives": workers.lives,
        "hours": end_s * speedup(task) / 3_600,
        "workers": task.shown(workers.final),
        "restart": task.shown(alone.at(end_s)),
        "elastic": task.shown(best),
        "lag": task.shown(max(lag(task, workers, other) for other in (alone, *together))),
    }


def stays_of(trace: str, task: Task) -> list[Stay]:
    """Return the machines of a trace in the order in which they joined."""
    return sorted(_stays(trace, task), key=lambda stay: stay.start_s)


def _stays(trace: str, task: Task) -> Iterator[Stay]:
    speeds, slots = MachineSpeeds(sigma=SIGMA), dict[str, int]()
    began: dict[str, float] = {}
    for event in read_events(trace):
        time_s = event.time_s / speedup(task)
        slots.setdefault(event.node, len(slots))
        if event.joined:
            began[event.node] = time_s
        else:
            yield Stay(began.pop(event.node), time_s, speeds.of(slots[event.node], 0).speed)
    for node, start_s in began.items():
        yield Stay(start_s, float("inf"), speeds.of(slots[node], 0).speed)


def restarted(stays: Sequence[Stay], task: Task, curve: Curve) -> Curve:
    """Return a loop's curve with the times of one machine after another, from checkpoint to checkpoint."""
    rate = 1 / (EXEC_S * (1 + BUDGET))
    now_s, trained, points, killed = 0.0, 0.0, list[Point](), 0
    while len(points) < len(curve.points):
        there = [stay for stay in stays if stay.start_s <= now_s < stay.end_s]
        if not there:
            now_s = min((stay.start_s for stay in stays if stay.start_s > now_s), default=math.inf)
            if now_s == math.inf:
                break
            continue
        machine = there[0]
        began_s, before = now_s + BOOT_S, trained
        trained += max(0.0, machine.end_s - began_s) * rate
        points += reached(task, curve.points[len(points) :], len(points), trained, began_s - before / rate, rate)
        if len(points) == len(curve.points):
            break
        killed += 1
        # Every other machine is taken without warning, as in the workers' runs (half of their kills have no grace).
        if killed % 2 and trained > before:
            trained = max(before, trained - (trained - before) % Case.interval)
            del points[int(trained // task.vertices) :]
        now_s = machine.end_s
    return Curve(tuple(points), killed)


def reached(
    task: Task, left: Sequence[Point], epochs: int, trained: float, zero_s: float, rate: float
) -> Iterator[Point]:
    """Yield the points of a curve that are reached with `trained` vertices, after the first `epochs`, at a `rate` in
    vertices per second since `zero_s`."""
    for epoch, point in enumerate(left, epochs + 1):
        if trained < epoch * task.vertices:
            return
        yield Point(zero_s + epoch * task.vertices / rate, point.value)


def elastic(stays: Sequence[Stay], task: Task, count: int, runs: Runs) -> list[Curve]:
    """Return two synchronous curves on up to `count` machines: the program's batch shared by them, and `count` such
    batches at the best rate."""
    return [
        synchronous(stays, task, count, task.batch, runs[loop(task, 0)]),
        synchronous(stays, task, count, task.batch * count, runs[tuned(task, count, runs)]),
    ]


def synchronous(stays: Sequence[Stay], task: Task, count: int, batch: int, curve: Curve) -> Curve:
    """Return a loop's curve with the times of up to `count` machines that share every step's batch."""
    now_s, trained, points = 0.0, 0.0, list[Point]()
    used: list[Stay] = []
    while len(points) < len(curve.points):
        there = [stay for stay in stays if stay.start_s <= now_s < stay.end_s]
        kept = [stay for stay in used if stay in there]
        used, before = [*kept, *(stay for stay in there if stay not in kept)][:count], used
        changes = [stay.start_s for stay in stays if stay.start_s > now_s] if len(used) < count else []
        until_s = min([*changes, *(stay.end_s for stay in used)], default=math.inf)
        if used:
            began_s = now_s + (BOOT_S if used != before else 0.0)
            rate, done = batch / step_s(batch / len(used), min(stay.speed for stay in used)), trained
            trained += max(0.0, until_s - began_s) * rate
            points += reached(task, curve.points[len(points) :], len(points), trained, began_s - done / rate, rate)
        now_s = until_s
        if now_s == math.inf:
            break
    return Curve(tuple(points), count)


if __name__ == "__main__":
    main()
