"""Log lines about batch and learning rates: they state what f is given, in every view, and are few."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gridml
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.api.run_calls import create_run
from gridml.cli.main import command_line
from gridml.engine.pace import FIXED_RATE, UsedSettings, added_sizes, used_settings
from gridml.model.loading import load
from master.backends.script import ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.scaling import MIN_SHARE, request, should_log_settings
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.views.page.document import read_page_facts
from master.views.report import report
from remote.stepped import Trainer

COSTS = Costs(exec_s=0.01, start_s=0.1, push_s=0.01, boot_s=0.5)
VERTICES = 1920
PROGRAM = """
from functools import partial

import numpy as np
import torch

import gridml

SEEN = {seen!r}


def saw(count, *optimisers):
    with open(SEEN, "a") as file:
        file.write(repr((count, [group["lr"] for o in optimisers for group in o.param_groups])) + "\\n")


def linear():
    return torch.nn.Linear(3, 2)


def normalised():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def two_groups(parameters):
    weight, bias = parameters
    return torch.optim.SGD([{{"params": [weight], "lr": 0.04}}, {{"params": [bias], "lr": 0.4}}])


class Network(gridml.Vertex):
    model = gridml.module({factory}, {optimiser})
    {more}


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Point(gridml.Vertex):
    values = gridml.array("float32", (3,))
    label = gridml.array("int64")
    to = gridml.edge({to})


{f}


def graph():
    random = np.random.default_rng(1)
    values = random.normal(size=({vertices}, 3)).astype("float32")
    g = gridml.Graph()
    to = g.add(Network) if "{to}" == "Network" else g.add(Total, count=np.zeros(1, np.int64))
    g.add(Point, values=values, label=(values.sum(1) > 0).astype("int64"), to=to)
    return g


program = gridml.Program(graph, train, {program})
"""
TRAIN = """
@gridml.update({update})
def train(points: gridml.Batch[Point], network: Network) -> None:
    saw(len(points), *network.optimisers.values())
    scores = network.model(points.values)
    {more}
    network.step(torch.nn.functional.cross_entropy(scores, points.label))
"""
ONE = """
@gridml.update
def train(point: Point, network: Network) -> None:
    saw(1, network.optimiser)
    network.step(torch.nn.functional.cross_entropy(network.model(point.values), torch.tensor(point.label)))
"""
COUNTING = """
@gridml.update(batch=64)
def train(points: gridml.Batch[Point], totals: gridml.Batch[Total]) -> None:
    saw(len(points))
    np.add.at(totals.count, points.to.index, 1)
"""
SGD = "partial(torch.optim.SGD, lr=0.05, momentum=0.9)"
CONSTANT = "schedule=gridml.constant"


@dataclass(frozen=True)
class Case:
    """A program, and the line of four workers."""

    line: str
    update: str = "batch=64"
    optimiser: str = SGD
    factory: str = "linear"
    more: str = ""
    program: str = CONSTANT
    function: str = TRAIN
    to: str = "Network"
    factor: float = 1.0  #: of the program's own schedule, in all of the run

    def written(self, folder: Path) -> Path:
        """Write the program to a file. Its f records its arguments in a file in the same folder."""
        second = "also = gridml.module(linear, partial(torch.optim.Adam, lr=0.001))" if self.more else ""
        f = self.function.format(update=self.update, more=self.more) if self.function is TRAIN else self.function
        text = PROGRAM.format(
            seen=str(folder / "seen"), factory=self.factory, optimiser=self.optimiser, more=second, to=self.to, f=f,
            vertices=VERTICES, program=self.program,
        )  # fmt: skip
        file = folder / "case.py"
        file.write_text(text)
        return file


FALLING = ", falling linearly to 0 over the last 40% of the run (schedule=gridml.constant keeps it)"
ADDED = "; steps are added while pushes are cheap (batch 16 to 32, rates times 0.25 to 0.5)"
CASES = {
    "shared": Case(f"batch 16 of 64, rate 0.025 of 0.05{ADDED}"),
    "default schedule": Case(f"batch 16 of 64, rate 0.025 of 0.05{FALLING}{ADDED}", program="epochs=1"),
    "min_batch": Case(
        f"batch 24 to 32 of 64, rate 0.03062 of 0.05{ADDED.replace('16', '24').replace('0.25', '0.38')}",
        update="batch=64, min_batch=24",
    ),
    "min_batch above half": Case("batch 40 to 64 of 64, rate 0.03953 of 0.05", update="batch=64, min_batch=40"),
    "all of it": Case("batch 64 (not shared: min_batch), rate 0.05", update="batch=64, min_batch=64"),
    "fixed rate": Case("batch 16 of 64, rate 0.05", update='batch=64, rate="fixed"'),
    "odd": Case(
        "batch 3 of 10, rate 0.02739 of 0.05; steps are added while pushes are cheap (batch 3 to 5, rates times 0.3 to "
        "0.5)",
        update="batch=10",
    ),
    "accumulating": Case(
        "batch 16 of 64, an optimiser step every 2 of them, rate 0.025 of 0.05", update="batch=64, accumulate=2"
    ),
    "own schedule": Case(
        f"batch 16 of 64, rate 0.025 of 0.05, times the program's own schedule{ADDED}",
        program="schedule=lambda share: 0.5",
        factor=0.5,
    ),
    "warm-up": Case(
        "batch 16 of 64, rate 0.025 of 0.05, times the program's own schedule, falling linearly to 0 over the last 40% "
        f"of the run (then=gridml.constant keeps it){ADDED}",
        program="schedule=gridml.warmup(steps=2)",
    ),
    "warm-up alone": Case(
        f"batch 16 of 64, rate 0.025 of 0.05, times the program's own schedule{ADDED}",
        program="schedule=gridml.warmup(steps=1, then=gridml.constant)",
    ),
    "torch's": Case(
        f"batch 16 of 64, rates as torch's scheduler sets them, times 0.5{ADDED}",
        program="schedule=gridml.torch_schedule(lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0))",
    ),
    "two groups": Case(f"batch 16 of 64, rates 0.02 of 0.04 and 0.2 of 0.4{ADDED}", optimiser="two_groups"),
    "two modules": Case(
        f"batch 16 of 64, rates 0.025 of 0.05 and 0.0005 of 0.001{ADDED}",
        more="scores = scores + network.also(points.values)",
    ),
    "normalising": Case("batch 64 (not shared: a layer normalises by its batch), rate 0.05", factory="normalised"),
    "one vertex": Case("one vertex at a time, rate 0.05", function=ONE),
    "no optimiser": Case("batch 64 (not shared: no optimiser)", program="epochs=1", function=COUNTING, to="Total"),
}


def played(file: Path, workers: int, root: Path) -> list[tuple[int, list[float]]]:
    """Return the arguments of f in a run: number of vertices, and the rates of all groups."""
    settings = Settings(file, "simulated", workers, steps_each=0, options=SimulatedOptions(None, None))
    scenario = Scenario(Steady(workers), COSTS, travel_s=0.01)
    play_scenario(settings, scenario, root, lambda *event: None, trainer=Trainer(file, COSTS))
    seen = [eval(line) for line in (file.parent / "seen").read_text().splitlines()]
    (file.parent / "seen").unlink()
    return seen


def training_lines(root: Path) -> list[str]:
    with opened(root) as ledger:
        return [text for (text,) in ledger.execute("SELECT text FROM events WHERE topic = 'training' ORDER BY rowid")]


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, workers) for name in CASES for workers in (1, 4)), ("shared", 3), ("odd", 2), ("min_batch", 9)],
)
def test_what_a_run_says_that_it_uses_is_what_f_is_given(name: str, workers: int, tmp_path: Path) -> None:
    case = CASES[name]
    file = case.written(tmp_path)
    seen = played(file, workers, tmp_path / "run")
    settings = load(file)
    adds = settings.adds_steps(settings.build(file))
    if workers == 4:
        assert training_lines(tmp_path / "run") == [f"4 workers: {case.line}: docs/training.md"]
    (_, line) = used_settings(settings, workers, adds=adds)
    assert training_lines(tmp_path / "run") == report(tmp_path / "run").settings == [line]

    def is_given(used: UsedSettings, count: int, rates: list[float]) -> bool:
        """Return whether a call of f agrees with the line for this number of workers. A batch at the end of a chunk may
        be smaller, and by the default schedule rates fall."""
        expected = [rate * used.rate_factor * case.factor for rate in settings.rates or ()]
        if "falling" in case.line:
            return count <= used.largest and all(got <= rate for got, rate in zip(rates, expected, strict=True))
        return count <= used.largest and rates == pytest.approx(expected)

    least, most = added_sizes(settings.update.batch or 1, settings.min_target_batch, workers)
    added = range(least, most + 1) if adds and workers > 1 else range(0)
    used_by = [used_settings(settings, live)[0] for live in range(1, workers + 1)]
    used_by += [used_settings(settings, live, size)[0] for live in range(2, workers + 1) for size in added]
    if settings.rates:
        seen.pop()  # the master's, who counts the operations of f, and trains nothing
    for count, rates in seen:  # of as many workers as held work just then
        assert any(is_given(used, count, rates) for used in used_by), (count, rates)
    full = [used for used in used_by if used.workers == workers]
    if workers <= 4:  # most calls are those of all workers together
        assert sum(any(is_given(used, *each) for used in full) for each in seen) > 0.5 * len(seen)
        ((usual, _),) = Counter(count for count, _ in seen).most_common(1)
        # A chunk that no whole batches make up has some of one less.
        assert any(used.batch - 1 <= usual <= used.largest for used in full)


def test_the_line_is_in_every_view(tmp_path: Path) -> None:
    case, root = CASES["default schedule"], tmp_path / "run"
    file = case.written(tmp_path)
    options = ["--cost", "t_x=0.01,push=0.01", "--workers", "4", "--run-dir", str(root)]
    said = CliRunner().invoke(command_line(), ["simulate", str(file), *options])
    line = f"4 workers: {case.line}: docs/training.md"
    assert f"training: {line}" in " ".join(said.stderr.split())
    assert f"settings {line}" in " ".join(said.stdout.split())
    (answer,) = json.loads(CliRunner().invoke(command_line(), ["report", str(root), "--json"]).output)["settings"]
    assert answer == line
    assert f"Settings: {line}" in " ".join(CliRunner().invoke(command_line(), ["status", str(root)]).output.split())
    assert json.loads(CliRunner().invoke(command_line(), ["status", str(root), "--json"]).output)["settings"] == [line]
    assert read_page_facts(root).to_json()["report"]["settings"] == [line]
    checked = CliRunner().invoke(command_line(), ["check", str(file)]).output
    assert re.search(rf"^settings +1 worker: batch 64, rate 0.05{re.escape(FALLING)}", checked, re.M)
    assert re.search(rf"^ +{re.escape(line)}$", checked, re.M)


def test_runs_that_a_call_begins_or_another_process_drives_say_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = CASES["shared"].written(tmp_path)
    line = f"4 workers: {CASES['shared'].line}: docs/training.md"
    heard: list[gridml.Event] = []
    gridml.simulate(file, workers=4, cost="t_x=0.01,push=0.01", run_dir=tmp_path / "called", on_event=heard.append)
    assert [(event.topic, event.text) for event in heard if event.topic == "training"] == [("training", line)]
    assert heard[0].facts == {
        "workers": 4,
        "batch": 16,
        "program_batch": 64,
        "accumulate": 1,
        "added": False,
        "rate_factor": 0.5,
        "program_rates": [0.05],
        "schedule": "constant",
    }
    create_run(Settings(file, workers=4), tmp_path / "submitted", quiet=False)  # as gridml submit does
    assert f"training: {line}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "workers", "ways", "begins"),
    [
        ("shared", 4, ["--workers 1", "--epochs", FIXED_RATE], "unless pushes turn out cheap, replicas of 4 workers"),
        ("accumulating", 2, ["--workers 1", "--epochs", FIXED_RATE], "replicas of 2 workers"),
        ("fixed rate", 4, ["--workers 1", "--epochs"], "replicas of 4 workers"),
        ("normalising", 4, ["--workers 1", "--epochs"], "replicas of 4 workers"),
        ("shared", 1, None, ""),
        ("no optimiser", 4, None, ""),
    ],
)
def test_a_run_whose_replicas_are_averaged_begins_with_what_that_costs(
    name: str, workers: int, ways: list[str] | None, begins: str, tmp_path: Path
) -> None:
    played(CASES[name].written(tmp_path), workers, tmp_path / "run")
    with opened(tmp_path / "run") as ledger:
        rows = ledger.execute("SELECT text, facts FROM events WHERE topic = 'averaged'").fetchall()
        first = [topic for (topic,) in ledger.execute("SELECT topic FROM events ORDER BY rowid LIMIT 2")]
    if ways is None:
        assert rows == []
    else:
        ((text, facts),) = rows
        assert json.loads(facts) == {"workers": workers, "ways": ways}
        assert text.startswith(begins) and all(way in text for way in ways)
        assert first == ["training", "averaged"]


def test_where_nothing_could_differ_nothing_is_said(tmp_path: Path) -> None:
    root = tmp_path / "run"
    said = CliRunner().invoke(
        command_line(), ["simulate", "--vertices", "200", "--workers", "2", "--run-dir", str(root)]
    )
    assert said.exit_code == 0 and "training" not in said.output
    assert training_lines(root) == report(root).settings == []


def test_other_settings_are_worth_a_line_once_they_were_used_for_a_while() -> None:
    two = UsedSettings(workers=2, batch=32, largest=32, rate_factor=0.5**0.5)
    assert should_log_settings(two, {(16, False), (32, True)}, 61.0, 200.0)[0]
    assert should_log_settings(two, {(16, False)}, 5.0, 5.0) == (False, "it was used for 5 of 5 s")
    assert should_log_settings(two, {(16, False)}, 90.0, 1000.0) == (False, "it was used for 90 of 1000 s")
    assert should_log_settings(two, {(16, False), (32, False)}, 100.0, 100.0) == (
        False,
        "a batch of 32 was logged before",
    )


@pytest.mark.parametrize(("exec_s", "lines"), [(0.01, ["4 workers"]), (0.2, ["4 workers", "1 worker"])])
def test_where_fewer_train_for_long_than_were_asked_for_a_line_says_what_they_use(
    exec_s: float, lines: list[str], tmp_path: Path
) -> None:
    """Four workers are asked for, but only one machine exists."""
    file, costs = CASES["shared"].written(tmp_path), Costs(exec_s=exec_s, push_s=0.01)
    settings = Settings(file, "simulated", 4, options=SimulatedOptions(None, None))
    play_scenario(
        settings, Scenario(Steady(1), costs), tmp_path / "run", lambda *event: None, trainer=Trainer(file, costs)
    )
    assert [text.partition(":")[0] for text in training_lines(tmp_path / "run")] == lines
    assert len(report(tmp_path / "run").settings) == len(lines)


def test_where_workers_come_and_go_all_the_time_no_settings_are_said_twice(tmp_path: Path) -> None:
    file, root, costs = CASES["shared"].written(tmp_path), tmp_path / "run", Costs(exec_s=0.5, push_s=0.01)
    settings = Settings(file, "simulated", 4, options=SimulatedOptions(None, None))
    script = ScriptedLives(4, Exponential(40.0), seed=1, gap_s=30.0)
    play_scenario(settings, Scenario(script, costs), root, lambda *event: None, trainer=Trainer(file, costs))
    said = re.findall(r": batch (\d+)(?: of \d+)?(, whose steps are added)?", "\n".join(training_lines(root)))
    assert said[0] == ("16", "") and 2 <= len(said) == len(set(said)) <= 1 / MIN_SHARE
    assert any(added for _, added in said)


def test_scaled_a_run_says_what_it_uses_from_then_on_and_a_new_master_says_nothing_twice(tmp_path: Path) -> None:
    file, root = CASES["shared"].written(tmp_path), tmp_path / "run"
    settings = Settings(file, "simulated", 4, options=SimulatedOptions(None, None))
    asked: list[str] = []

    def scale(topic: str, text: str, facts: object) -> None:
        if topic == "running" and not asked:
            asked.append(text)
            request(root, 2)

    scenario = Scenario(Steady(4), COSTS, travel_s=0.01, crash_every_s=1.0)
    result = play_scenario(settings, scenario, root, scale, trainer=Trainer(file, COSTS))
    assert result.masters > 1
    assert [text.partition(",")[0] for text in training_lines(root)] == [
        "4 workers: batch 16 of 64",
        "2 workers: batch 32 of 64",
    ]
