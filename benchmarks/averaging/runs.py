"""A run of `benchmarks.averaging`: real training under the real master on simulated machines. Runs are kept.

Time is simulated: a vertex takes EXEC_S on a typical machine, speeds are log-normal, and the cost of a push makes the
master request one every `interval` vertices, like the link of a real grid. Everything else is the real code: leases,
sessions, merges, the gate, epochs.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.arguments import sized
from benchmarks.table import results
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from chunk_model.prices import read_record
from chunk_model.traces import TraceEvent
from gridml.engine import pace
from gridml.engine.devices import Device
from gridml.errors import UserCodeError
from gridml.model.device_memory import CPU
from master.backends.script import Replay, Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import STEPS_EACH, Settings
from master.sync import version_use
from master.views.report import report
from remote.stepped import Trainer

PROGRAMS = Path(__file__).parents[1] / "programs"
EXEC_S = 0.003
BUDGET = Settings.push_budget
CACHE = "averaging_runs.jsonl"
TRAVEL_S, BOOT_S = 0.05, 1.0
SIGMA = 0.3  # of the logarithm of machines' speeds
RATES = sized((0.5, 1.0, 2.0), (1.0,))  # times the program's, that a loop with a larger batch is tuned over
WIDE = (*RATES, 4.0, 8.0)  # for a task whose best was the largest of them


@dataclass(frozen=True)
class Task:
    """A program and its variant."""

    name: str
    program: str
    vertices: int
    epochs: int
    batch: int
    rate: float  #: learning rate of the program: the best of half of it, of it and of twice it for its own loop
    metric: str = "accuracy"
    more_is_better: bool = True
    rows: bool = False  #: replicas are merged by rows, so any number of workers may be requested
    variant: tuple[tuple[str, str], ...] = ()  #: environment variables that select the variant of the program
    loop_rates: tuple[float, ...] = RATES  #: factors of the rate over which a loop with a larger batch is tuned

    @property
    def sign(self) -> int:
        """The factor that makes larger values of the metric better."""
        return 1 if self.more_is_better else -1

    @property
    def suffix(self) -> str:
        """The suffix of file names that distinguishes variants of a program."""
        return "".join(f"_{value}" for _, value in self.variant)

    @property
    def source(self) -> Path:
        """The file of its program."""
        return PROGRAMS / f"{self.program}.py"

    def environment(self, batches: int = 1, rates: float = 1.0) -> dict[str, str]:
        """Return the environment that selects a variant of the program, with factors of its batch and learning rate."""
        return {**dict(self.variant), "BATCH": str(batches * self.batch), "RATE": str(rates * self.rate)}

    def shown(self, value: float) -> float:
        """The metric as a table shows it: shares in percent."""
        return round(100 * value, 2) if self.metric in ("accuracy", "recall") else round(value, 4)


TASKS = {
    task.name: task
    for task in (
        Task("MNIST, LeNet", "small_lenet", sized(6_000, 512), sized(6, 2), 64, 0.05),
        Task("CIFAR-10, GroupNorm", "cifar", 10_000, 8, 64, 0.0125, variant=(("NORM", "group"),)),
        Task("CIFAR-10, BatchNorm", "cifar", 10_000, 8, 64, 0.025, variant=(("NORM", "batch"),)),
        Task("MNIST, LeNet, Adam", "small_lenet", 6_000, 6, 64, 0.008, variant=(("OPTIMISER", "Adam"),)),
        Task("CIFAR-10, AdamW", "cifar", 10_000, 8, 64, 0.004, variant=(("OPTIMISER", "AdamW"),)),
        Task("Bible, transformer", "bible", 4_000, 4, 16, 0.003, "loss", more_is_better=False),
        Task(
            "Adult, logistic regression",
            "adult",
            sized(24_561, 900),
            sized(5, 2),
            32,
            0.25,
            "loss",
            more_is_better=False,
            rows=True,
        ),
        Task("Adult, table, Adam", "adult_bag", 24_561, 5, 32, 0.005, "loss", more_is_better=False),
        Task("MovieLens, factorisation", "ratings", 80_000, 8, 32, 0.02, "error", more_is_better=False, rows=True),
        Task("Gowalla, tables, Adam", "places", 30_000, 6, 64, 0.02, "recall", loop_rates=WIDE),
        *(
            Task(name, "towers", 40_000, 6, 128, 0.006, "recall", variant=(("TABLES", rule),), loop_rates=WIDE)
            for name, rule in (("Clicks, two towers", "stale_mean"), ("Clicks, tables added", "add"))
        ),
    )
}


# Small tasks, for comparisons that need many runs.
SMALL_TASKS = {
    task.name: task
    for task in (
        Task("MNIST, perceptron", "small_lenet", 4_000, 10, 64, 0.2, variant=(("MODEL", "perceptron"),)),
        Task(
            "Bible, small transformer",
            "bible",
            1_500,
            4,
            16,
            0.01,
            "loss",
            more_is_better=False,
            variant=(("SIZE", "small"),),
        ),
    )
}


TRACES = {
    "EC2 p3": "bamboo/p3-trace.csv",
    "GCP V100": "bamboo/gcp-v100x1-east1c.txt",
    "AWS V100": "skypilot/preemption/4-node/aws-08-03-2023/us-west-2c_v100_1.json",
}
LOOP_S = 8 * 3_600.0  # of a trace's time: the assumed duration of a loop


def read_events(name: str) -> tuple[TraceEvent, ...]:
    """Return when the machines of one of `TRACES` joined and left."""
    lives = read_record(Path(os.environ["GRIDML_DATA"]) / "spot" / TRACES[name]).lives
    joined = [TraceEvent(life.start_s, life.node, joined=True) for life in lives]
    left = [TraceEvent(life.end_s, life.node, joined=False) for life in lives if life.end_s is not None]
    return tuple(sorted([*joined, *left], key=lambda event: (event.time_s, event.joined)))


def speedup(task: Task) -> float:
    """Return the seconds of a trace that a simulated second stands for."""
    return LOOP_S / (task.vertices * task.epochs * EXEC_S)


@dataclass(frozen=True)
class Case:
    """The configuration of a run. A loop is a single worker that is never killed."""

    task: str
    workers: int
    interval: int = 1_024  #: vertices between two pushes of a worker
    #: workers have exponential lives, a third of their share of the run on average, which end by SIGTERM and SIGKILL
    #: in turn
    kills: bool = False
    seed: int = 0
    rule: str = "stale_mean"
    batches: int = 1  #: factor of the program's batch, for loops
    rates: float = 1.0  #: factor of the program's learning rate, for loops
    epochs: int | None = None
    parts: int = pace.MAX_BATCH_PARTS  #: parts into which workers may share a batch
    power: float = 0.5  #: the power of the share by which the learning rate of a smaller batch falls
    steps_each: int = STEPS_EACH  #: fewer workers are requested if each would train fewer batches than this
    trace: str = ""  #: the machines are those of this one of `TRACES`
    every: int | None = None  #: vertices between two pushes, as `--push-every` sets them; None: chosen by gridml
    travel_s: float = TRAVEL_S  #: seconds that a message is under way
    turn_s: float = Scenario.turn_s  #: seconds between two turns of the master
    tail: bool = False  #: epochs are evaluated with the mean over their tail; the last one always is


@dataclass(frozen=True)
class Point:
    """The metric at the end of an epoch, and the simulated seconds since the run began."""

    time_s: float
    value: float


@dataclass(frozen=True)
class Curve:
    """The course of a run."""

    points: tuple[Point, ...]  #: at the end of each epoch
    lives: int  #: workers that were used up
    worth: float | None = None  #: what its report says that the workers were worth; None in runs that were kept earlier

    @property
    def final(self) -> float:
        return self.points[-1].value

    def at(self, time_s: float) -> float:
        """Return the metric at a moment, interpolated between epochs; before the first epoch's end, its metric."""
        times, values = zip(*((point.time_s, point.value) for point in self.points), strict=True)
        return float(np.interp(time_s, times, values))


class Runs:
    """The results of runs, by case, in an append-only file, so that an interrupted benchmark loses no finished run."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path = path or results() / CACHE
        self._curves: dict[Case, Curve] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for kept in map(json.loads, lines):
            points = tuple(Point(*point) for point in kept["points"])
            self._curves[Case(**kept["case"])] = Curve(points, kept["lives"], kept.get("worth"))

    def __contains__(self, case: Case) -> bool:
        return case in self._curves

    def __getitem__(self, case: Case) -> Curve:
        return self._curves[case]

    def keep(self, case: Case, curve: Curve) -> None:
        """Append a run. Fields at their defaults are not written, so old lines stay valid when a field is added."""
        self._curves[case] = curve
        chosen = {f.name: getattr(case, f.name) for f in fields(case) if getattr(case, f.name) != f.default}
        points = [[round(point.time_s, 2), round(point.value, 5)] for point in curve.points]
        with self._path.open("a", encoding="utf-8") as file:
            worth = {} if curve.worth is None else {"worth": round(curve.worth, 3)}
            file.write(json.dumps({"case": chosen, "points": points, "lives": curve.lives, **worth}) + "\n")


def push_s(interval: int) -> float:
    """Return the cost of a push, in seconds of a worker, at which a push comes every `interval` vertices."""
    return interval * EXEC_S * BUDGET


def play(case: Case, device: str = CPU) -> Curve:
    """Play a run to its end. All its workers train on `device`, by torch's name."""
    task = (TASKS | SMALL_TASKS)[case.task]
    epochs = case.epochs or task.epochs
    costs = Costs(exec_s=EXEC_S, start_s=0.1, push_s=push_s(case.interval), boot_s=BOOT_S)
    life_s = task.vertices * epochs * EXEC_S / case.workers / 3
    script: Script = Steady(case.workers)
    if case.kills:
        script = ScriptedLives(case.workers, Exponential(life_s), case.seed, grace_s=5.0, late=0)
    if case.trace:
        script = Replay(read_events(case.trace), case.seed, speedup=speedup(task))
    speeds = MachineSpeeds(sigma=SIGMA) if case.workers > 1 else MachineSpeeds()
    scenario = Scenario(script, costs, speeds, travel_s=case.travel_s, turn_s=case.turn_s, seed=case.seed)
    settings = Settings(
        task.source,
        "simulated",
        case.workers,
        epochs=epochs,
        seed=case.seed,
        steps_each=case.steps_each,
        push_every=case.every,
        options=SimulatedOptions(None, None),
    )
    with (
        mock.patch.dict(os.environ, {**task.environment(case.batches, case.rates), "RULE": case.rule}),
        mock.patch.object(pace, "MAX_BATCH_PARTS", case.parts),
        mock.patch.object(version_use, "TAIL_SHARE", version_use.TAIL_SHARE if case.tail else 0.0),
        mock.patch.object(pace, "rate_scale", lambda share, keeps_rate: share**case.power),
        tempfile.TemporaryDirectory() as folder,
    ):
        root = Path(folder) / "run"
        try:
            play_scenario(
                settings, scenario, root, trainer=Trainer(task.source, costs, case.seed, device=Device(device))
            )
        except UserCodeError:
            if case.batches == 1:
                raise
            return Curve((Point(0.0, -task.sign * math.inf),), 1)  # a batch so large that the loop diverges
        with opened(root) as ledger:
            rows = ledger.execute("SELECT closed_s, metrics FROM epochs ORDER BY epoch").fetchall()
            (began,) = ledger.execute("SELECT min(submitted_s) FROM workers").fetchone()
            (lives,) = ledger.execute("SELECT count(*) FROM workers WHERE started_s NOT NULL").fetchone()
        worth = report(root).worth
    return Curve(tuple(Point(at - began, float(json.loads(m)[task.metric])) for at, m in rows), lives, worth)
