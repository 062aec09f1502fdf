"""The contract of loggers: steps rise and never repeat, with any kills, and a failing logger is dropped once."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from chunk_model.goodput import Costs
from gridml.errors import RunError, UsageError
from master.backends.script import Steady
from master.ports.mailboxes import DaemonExecutor
from master.simulation.scenario import Scenario
from master.simulation.world import World, play_scenario
from master.store.schema import LoggedMean
from master.store.settings import Settings
from master.telemetry.loggers.base import LOGGED, LOGGERS, METRICS, Logger, LoggerPlugin, Point
from master.telemetry.loggers.services import read_history
from master.telemetry.run_loggers import EVERY_S, MAX_POINTS, RunLoggers
from remote.stepped import Trainer

ROOT = Path(__file__).resolve().parents[3]
COUNT, EPOCHS = 400, 3
COSTS = Costs(exec_s=0.4, start_s=0.5, push_s=0.05)
Written = list[tuple[str, int, str, float]]  # kind, step, name, value


def json_points(root: Path) -> Written:
    points = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return [(p["kind"], p["step"], name, value) for p in points for name, value in p["values"].items()]


def csv_points(root: Path) -> Written:
    with (root / "metrics.csv").open() as file:
        return [(row["kind"], int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]


def tensorboard_points(root: Path) -> Written:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    written = []
    for file in sorted((root / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        for record in loader.RawEventFileLoader(str(file)).Load():
            event = event_pb2.Event.FromString(record)
            written += [(*value.tag.split("/"), event.step, value.simple_value) for value in event.summary.value]
    return [(kind, step, name, value) for kind, name, step, value in written]


def mlflow_points(root: Path) -> Written:
    """Read the files of MLflow's store: a line for each value, with its time, the value and the step."""
    (metrics,) = root.glob("mlruns/[0-9]*/*/metrics")  # one run of one experiment
    written = []
    for file in sorted(path for path in metrics.rglob("*") if path.is_file()):
        kind, name = file.relative_to(metrics).parts
        for line in file.read_text().splitlines():
            _, value, step = line.split()[:3]
            written.append((kind, int(step), name, float(value)))
    return written


def wandb_points(root: Path) -> Written:
    """Read W&B's offline runs."""
    written, counted = [], []
    for file in sorted(root.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for values in read_history(file):
            if "vertices" in values:
                counted.append(int(values["_step"]))
                named = ((name.split("/"), float(value)) for name, value in values.items() if "/" in name)
                written += [(kind, int(values["vertices"]), name, value) for (kind, name), value in named]
    assert counted == sorted(set(counted)), "else W&B drops them"
    return written


READERS: dict[str, Callable[[Path], Written]] = {
    "csv": csv_points,
    "json": json_points,
    "tensorboard": tensorboard_points,
    "mlflow": mlflow_points,
    "wandb": wandb_points,
}


def play(program: Path, root: Path, name: str, scenario: Scenario) -> World:
    chosen = Settings(program, "simulated", 3, chunk=40, push_every=20, steps_each=0, loggers=(name,))
    return play_scenario(chosen, scenario, root, trainer=Trainer(program, COSTS))


def check(written: Written) -> None:
    """Steps rise for each name, the last is the run's end, and each logged value is the mean since the last point."""
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    numbers = []
    for kind, step, name, value in written:
        steps[kind, name].append(step)
        if name == "number":
            numbers.append((step, value))
    assert {*steps} == {(LOGGED, "number"), (LOGGED, "twice"), (METRICS, "total")}
    for at in steps.values():
        assert at == sorted(set(at)) and at[-1] == COUNT * EPOCHS
    assert len(steps[METRICS, "total"]) == EPOCHS
    assert [value for kind, _, name, value in written if name == "twice"] == [2.0] * len(steps[LOGGED, "twice"])
    total = sum((step - before) * mean for (before, _), (step, mean) in pairwise([(0, 0.0), *numbers]))
    assert total == pytest.approx(EPOCHS * COUNT * (COUNT - 1) / 2)  # of all vertices, each in one point
    assert len(numbers) > 2


@pytest.mark.parametrize("name", READERS)
def test_steps_do_not_repeat_when_masters_are_killed(name: str, programs: Path, tmp_path: Path) -> None:
    for module in LOGGERS.find(name).modules:
        pytest.importorskip(module)
    killed = Scenario(Steady(3), COSTS, turn_s=0.2, crash_every_s=15.0, restart_s=1.0, seed=1)
    assert play(programs / "logs.py", tmp_path / "run", name, killed).masters > 3
    check(READERS[name](tmp_path / "run"))


@pytest.fixture
def plugins() -> Iterator[Callable[[str, LoggerPlugin], None]]:
    """A function that registers loggers for one test."""
    added = []

    def add(name: str, plugin: LoggerPlugin) -> None:
        LOGGERS.register(name, lambda: plugin)
        added.append(name)

    yield add
    for name in added:
        LOGGERS._loaded.pop(name)


class Failing(Logger):
    """A logger that takes one point, and then fails."""

    def __init__(self, root: Path) -> None:
        self.points = 0

    def last(self) -> Mapping[str, int]:
        return {}

    def write(self, points: Sequence[Point]) -> None:
        self.points += len(points)
        if self.points > 1:
            raise OSError("the disk is full")


def test_one_that_fails_is_left_out_with_one_warning(
    programs: Path, tmp_path: Path, plugins: Callable[[str, LoggerPlugin], None]
) -> None:
    plugins("failing", LoggerPlugin("failing", Failing))
    play(programs / "logs.py", tmp_path / "run", "failing", Scenario(Steady(3), COSTS, turn_s=0.2))
    log = (tmp_path / "run" / "events.log").read_text()
    assert log.count("warning ") == 1
    assert "the logger failing failed and is dropped: OSError: the disk is full" in log
    check(json_points(tmp_path / "run"))


class Fussy(Logger):
    """A logger that refuses names with `=` or `..`, and a point with any of them, as MLflow does."""

    written: ClassVar[Written] = []

    def __init__(self, root: Path) -> None:
        Fussy.written = []

    def last(self) -> Mapping[str, int]:
        return {}

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            for name in point.values:
                if "=" in name or ".." in name:
                    raise ValueError(f"invalid name {name}")
        Fussy.written += [(p.kind, p.step, name, value) for p in points for name, value in p.values.items()]


NAMES = ("=cmd|' /C calc'!A0", "../../x", "../evaluate/accuracy", "accuracy", "@SUM(1)", "<script>", "loss", "loss/x")


class NamesLedger:
    """A ledger in which f logs under `names`, and evaluate returns an accuracy."""

    def __init__(self, *names: str, metrics: Mapping[str, object] | None = None) -> None:
        self.credited, self.names, self.metrics = 10, names, metrics or {"accuracy": 0.5}

    def newest_evaluation(self) -> tuple[int, int]:
        return self.credited, 0

    def evaluated_since(self, credited: int) -> list[tuple[int, int, float, Mapping[str, object]]]:
        return [(self.credited, 0, 2.5, self.metrics)] if credited < self.credited else []

    def logged_since(self, credited: int) -> list[LoggedMean]:
        means = [LoggedMean(self.credited, 0, name, 2.0, 10) for name in self.names]
        return means if credited < self.credited else []

    def last_activity_s(self) -> float:
        return 2.5


def log_three_times(root: Path, ledger: Any, *plugins: LoggerPlugin) -> list[str]:
    """Return the warnings of a run with three points of each kind."""
    warnings = list[str]()
    loggers = RunLoggers(plugins, root, ledger, DaemonExecutor, warnings.append)
    for ledger.credited in (10, 20, 30):
        loggers.finish()
    loggers.close()
    return warnings


@pytest.mark.parametrize("name", ["fussy", "mlflow"])
def test_names_that_one_logger_refuses_are_left_out_of_it_alone(name: str, tmp_path: Path) -> None:
    """Regression: a worker that logged under such a name ended MLflow's logging for the run."""
    plugin = LoggerPlugin("fussy", Fussy) if name == "fussy" else LOGGERS.find(name)
    for module in plugin.modules:
        pytest.importorskip(module)
    (tmp_path / "README.txt").write_text("of a run")
    warnings = log_three_times(tmp_path, NamesLedger(*NAMES), plugin, LOGGERS.find("json"))
    written = Fussy.written if name == "fussy" else mlflow_points(tmp_path)
    taken = {of for kind, _, of, _ in written if kind == LOGGED}
    assert {"accuracy", "loss"} <= taken and not {of for of in taken if "=" in of or ".." in of}
    assert sorted(step for _, step, of, _ in written if of == "loss") == [10, 20, 30]
    assert [(step, v) for kind, step, of, v in sorted(written) if (kind, of) == (METRICS, "accuracy")] == [
        (10, 0.5),
        (20, 0.5),
        (30, 0.5),
    ]
    assert {of for kind, _, of, _ in json_points(tmp_path) if kind == LOGGED} == {*NAMES}
    assert len(warnings) == 1 and f"the logger {name} refuses" in warnings[0] and "names, such as" in warnings[0]


def test_a_logger_that_takes_none_of_what_f_logs_waits_for_evaluate(tmp_path: Path) -> None:
    assert len(log_three_times(tmp_path, NamesLedger("=", ".."), LoggerPlugin("fussy", Fussy))) == 1
    assert [step for _, step, _, _ in Fussy.written] == [10, 20, 30]
    warnings = log_three_times(tmp_path, NamesLedger("=", metrics={"a=b": 1.0}), LoggerPlugin("fussy", Fussy))
    assert [warning.partition(":")[0] for warning in warnings] == ["the logger fussy failed and is dropped"]


def test_no_cell_of_a_csv_begins_a_formula(tmp_path: Path) -> None:
    """Regression: a spreadsheet ran a worker's name. Negative numbers stay numbers."""
    names = ("=1+1", "@SUM(1)", "+1", "-1", " =1", "a;=1", "a; @b", "\uff1d1")
    plain = ("a=b", "a-b", "loss", "a; b", "1e-3", "a@b", "\\r")
    logger = LOGGERS.find("csv").open(tmp_path)
    logger.write([Point(METRICS, 1, 1, 2.5, dict.fromkeys((*names, *plain[:-1], "\r"), -1.5))])
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [*csv.reader(file)][1:]
    assert [row[4] for row in rows[len(names) :]] == [*plain] and {row[5] for row in rows} == {"-1.5"}
    assert [row[4].replace("'", "") for row in rows[: len(names)]] == [*names]
    for cell in (cell for row in rows for cell in row[4].split(";")):
        assert not re.match(r"\s*[-=+@\uff1d]", cell), cell


def test_what_is_not_there_is_said_before_anything_is_made(
    programs: Path, tmp_path: Path, plugins: Callable[[str, LoggerPlugin], None]
) -> None:
    lacking = LoggerPlugin("lacking", Failing, ("no_such_module",), "pip install 'gridml[lacking]'")
    plugins("lacking", lacking)
    calm = Scenario(Steady(3), COSTS)
    with pytest.raises(RunError, match=r"lacking needs no_such_module, which is not installed.*gridml\[lacking\]"):
        play(programs / "logs.py", tmp_path / "run", "lacking", calm)
    with pytest.raises(UsageError, match=r"there is no logger 'tensorbord'; expected one of csv, json, tensorboard"):
        play(programs / "logs.py", tmp_path / "run", "tensorbord", calm)
    assert not (tmp_path / "run").exists()


def points(*steps: int, kind: str = LOGGED) -> list[Point]:
    return [Point(kind, step, 1, 2.5, {"a": step / 2, "b": -1.0}) for step in steps]


@pytest.mark.parametrize("name", ["csv", "json"])
def test_a_file_that_was_cut_short_anywhere_goes_on(name: str, tmp_path: Path) -> None:
    file = {"csv": "metrics.csv", "json": "metrics.jsonl"}[name]
    whole = tmp_path / "whole"
    whole.mkdir()
    first = LOGGERS.find(name).open(whole)
    first.write(points(10, 20))
    first.write([*points(20, kind=METRICS), *points(30)])
    content = (whole / file).read_bytes()
    for length in range(0, len(content) + 1, 7):
        root = tmp_path / str(length)
        root.mkdir()
        (root / file).write_bytes(content[:length])
        again = LOGGERS.find(name).open(root)
        logged, metrics = again.last().get(LOGGED, 0), again.last().get(METRICS, 0)
        again.write([*points(*[s for s in (20,) if s > metrics], kind=METRICS)])
        again.write(points(*[s for s in (10, 20, 30, 40) if s > logged]))
        written = sorted((kind, step, name) for kind, step, name, _ in READERS[name](root))
        steps = [*((LOGGED, step) for step in (10, 20, 30, 40)), (METRICS, 20)]
        assert written == sorted((kind, step, name) for kind, step in steps for name in "ab"), length


@pytest.mark.parametrize("name", ["csv", "json"])
def test_a_point_of_which_a_full_disk_took_a_part_comes_again_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, write = LOGGERS.find(name).open(tmp_path), os.write
    logger.write(points(10, 20))
    logger.write(points(20, kind=METRICS))
    taken = iter([9])  # free bytes on the disk

    def full(handle: int, content: bytes) -> int:
        room = next(taken, 0)
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, content[:room])

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "write", full)
        logger.write(points(30))
    for _ in range(3):  # masters that start and write nothing lose nothing either
        again = LOGGERS.find(name).open(tmp_path)
    logged, metrics = again.last().get(LOGGED, 0), again.last().get(METRICS, 0)
    again.write(points(*[s for s in (20,) if s > metrics], kind=METRICS))
    again.write(points(*[s for s in (10, 20, 30) if s > logged]))
    written = sorted((kind, step, value) for kind, step, value, _ in READERS[name](tmp_path))
    steps = [*((LOGGED, step) for step in (10, 20, 30)), (METRICS, 20)]
    assert written == sorted((kind, step, value) for kind, step in steps for value in "ab")


def test_a_number_that_is_none_is_null_in_json(tmp_path: Path) -> None:
    LOGGERS.find("json").open(tmp_path).write([Point(METRICS, 1, 1, 0.0, {"x": float("nan")})])
    line: dict[str, Any] = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["values"] == {"x": None}
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


KILLED = """
import os, signal, sys
from pathlib import Path
from master.telemetry.loggers.base import Point
from master.telemetry.loggers.base import LOGGERS

logger = LOGGERS.find(sys.argv[1]).open(Path(sys.argv[2]))
before = {"train": 0, "evaluate": 0, **logger.last()}
for step in map(int, sys.argv[3:]):
    given = [Point(kind, step, 1, 2.5, {"a": step / 2, "b": -1.0}) for kind in before if step > before[kind]]
    logger.write(given)
if before["train"] or sys.argv[-1] == "50":
    logger.close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.real
@pytest.mark.parametrize("name", READERS)
def test_a_logger_whose_process_is_killed_goes_on(name: str, tmp_path: Path) -> None:
    """Points that were written stay or are sent again; no step is written twice."""
    for module in LOGGERS.find(name).modules:
        pytest.importorskip(module)
    (tmp_path / "README.txt").write_text("of a run")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    environment.pop("WANDB_SERVICE", None)  # belongs to this process; the next master has none
    for steps in (("10", "20", "30"), ("10", "20", "30", "40", "50")):
        command = [sys.executable, "-c", KILLED, name, str(tmp_path), *steps]
        assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == -signal.SIGKILL
    written = sorted(READERS[name](tmp_path))
    keys = [(kind, step, of) for kind, step, of, _ in written]
    assert keys == sorted((k, step, of) for k in (LOGGED, METRICS) for step in (10, 20, 30, 40, 50) for of in "ab")


class Stuck(Logger):
    """A logger that blocks until it is released."""

    gone_on = threading.Event()

    def __init__(self, root: Path) -> None:
        assert Stuck.gone_on.wait(60)

    def last(self) -> Mapping[str, int]:
        return {}

    def write(self, points: Sequence[Point]) -> None:
        """Release it."""


def test_one_that_is_stuck_holds_up_no_other(tmp_path: Path) -> None:
    class Ledger:
        """A logger that already has a point above all steps below 10."""

        def newest_evaluation(self) -> tuple[int, int]:
            return 0, -1

        def evaluated_since(self, credited: int) -> list[object]:
            return []

        def logged_since(self, credited: int) -> list[LoggedMean]:
            return [LoggedMean(10, 0, "a", 0.5, 10)] if credited < 10 else []

        def last_activity_s(self) -> float:
            return 2.5

    ledger: Any = Ledger()
    plugins = [LoggerPlugin("stuck", Stuck), LOGGERS.find("json")]
    loggers = RunLoggers(plugins, tmp_path, ledger, DaemonExecutor, pytest.fail)
    deadline, now = time.monotonic() + 60, 0.0
    while not (tmp_path / "metrics.jsonl").exists() and time.monotonic() < deadline:
        loggers.step(now := now + EVERY_S)
        time.sleep(0)
    Stuck.gone_on.set()
    loggers.finish()
    loggers.close()
    assert json_points(tmp_path) == [(LOGGED, 10, "a", 0.5)]


@pytest.mark.parametrize("stepped", [False, True], ids=["ends-at-once", "goes-on"])
def test_one_that_begins_late_gets_all_evaluations(stepped: bool, tmp_path: Path) -> None:
    evaluations = 2 * MAX_POINTS + 500

    class Ledger:
        """A ledger with an evaluation at each step, and logged values up to the last step."""

        def newest_evaluation(self) -> tuple[int, int]:
            return evaluations, evaluations

        def evaluated_since(self, credited: int) -> list[tuple[int, int, float, dict[str, float]]]:
            return [(step, step - 1, 2.5, {"loss": 1 / step}) for step in range(credited + 1, evaluations + 1)]

        def logged_since(self, credited: int) -> list[LoggedMean]:
            return [LoggedMean(evaluations, 0, "a", 0.5, 10)] if credited < evaluations else []

        def last_activity_s(self) -> float:
            return 2.5

    ledger: Any = Ledger()
    loggers = RunLoggers([LOGGERS.find("json"), LOGGERS.find("csv")], tmp_path, ledger, DaemonExecutor, pytest.fail)
    for turn in range(3 if stepped else 0):
        loggers.step(turn * EVERY_S)
    loggers.finish()
    loggers.close()
    for written in (json_points(tmp_path), csv_points(tmp_path)):
        assert [step for kind, step, *_ in written if kind == METRICS] == [*range(1, evaluations + 1)]
        assert [point for point in written if point[0] == LOGGED] == [(LOGGED, evaluations, "a", 0.5)]
