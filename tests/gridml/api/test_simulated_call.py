"""A simulated run by call has the same ledger as by command, for every form of program."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gridml
from gridml.api.displays import Display
from gridml.cli import main
from gridml.cli.arguments import typer_command
from gridml.cli.start import simulate
from gridml.errors import ProgramError, UsageError
from master.backends.simulated_plugin import simulate_options
from master.simulation.result import fingerprint
from master.state.options import in_panels

PROGRAMS = Path(__file__).parents[2] / "programs"
COSTS = "t_x=0.01,t_s=1,push=0.1"


@pytest.fixture
def tallies(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a program, as if imported."""
    spec = importlib.util.spec_from_file_location("tally_as_imported", PROGRAMS / "tally.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module


def by_command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["simulate", *arguments])
    assert not ended.value.code


def test_by_call_as_by_command(tallies: ModuleType, tmp_path: Path) -> None:
    given = ["--workers", "3", "--cost", COSTS, "--lifetime", "exponential(20s)", "--seed", "5", "--chunk", "4"]
    by_command(str(PROGRAMS / "tally.py"), *given, "--run-dir", str(tmp_path / "command"))
    options = {"workers": 3, "cost": COSTS, "lifetime": "exponential(20s)", "chunk": 4}
    path = gridml.simulate(PROGRAMS / "tally.py", seed=5, run_dir=tmp_path / "path", **options)
    program = gridml.simulate(tallies.program, seed=5, run_dir=tmp_path / "program", **options)
    other = gridml.simulate(tallies.program, seed=6, run_dir=tmp_path / "other", **options)
    same = {fingerprint(root) for root in (tmp_path / "command", path.run_dir, program.run_dir)}
    assert same == {fingerprint(tmp_path / "command")} and fingerprint(other.run_dir) not in same


@pytest.mark.parametrize("display", ["none", "plain"])
def test_it_shows_what_it_is_asked_to(tmp_path: Path, capfd: pytest.CaptureFixture[str], display: Display) -> None:
    run = gridml.simulate(PROGRAMS / "tally.py", workers=2, cost=COSTS, run_dir=tmp_path / "run", display=display)
    gridml.load(run)
    out, err = capfd.readouterr()
    assert err == "" and ("finished" in out) is (display == "plain") and bool(out) is (display == "plain")


def test_it_begins_with_what_another_run_ended_with_by_text_and_by_value(tmp_path: Path) -> None:
    first = gridml.simulate(PROGRAMS / "tally.py", workers=2, cost=COSTS, run_dir=tmp_path / "first")
    for number, given in enumerate((f"{first.run_dir}:final", gridml.load(first))):
        again = gridml.simulate(
            PROGRAMS / "tally.py", workers=2, cost=COSTS, init_from=given, run_dir=tmp_path / f"again-{number}"
        )
        assert (gridml.load(again)["Word.count"] == 2 * gridml.load(first)["Word.count"]).all()


def test_workers_that_only_take_time(tmp_path: Path) -> None:
    given = ["--cost", COSTS, "--vertices", "2000", "--workers", "4", "--seed", "1"]
    by_command(*given, "--run-dir", str(tmp_path / "command"))
    topics: list[str] = []

    def hear(event: gridml.Event) -> None:
        topics.append(event.topic)

    run = gridml.simulate(cost=COSTS, vertices=2000, workers=4, seed=1, run_dir=tmp_path / "call", on_event=hear)
    assert fingerprint(run.run_dir) == fingerprint(tmp_path / "command")
    assert run.status == "finished" and run.report().credited == 2000
    assert "finished" in topics and [e.topic for e in run.events("finished")] == ["finished"]


def test_its_events_have_their_simulated_times_and_what_a_listener_raises_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[gridml.Event] = []

    def hear(event: gridml.Event) -> None:
        heard.append(event)
        if event.topic == "epoch":
            raise KeyError(event.topic)

    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError, match="epoch"):
        gridml.simulate(cost=COSTS, vertices=2000, epochs=3, workers=2, run_dir="run", on_event=hear)
    run = gridml.Run("run")
    monkeypatch.chdir("/")
    assert run.report().credited < 3 * 2000  # elsewhere it is the same run
    written = {(event.topic, event.text): event.at_s for event in run.events()}
    reported = {(event.topic, event.text): event.at_s for event in heard}
    both = written.keys() & reported.keys()
    assert {topic for topic, _ in both} >= {"running", "epoch"}
    assert {each: reported[each] for each in both} == {each: written[each] for each in both}


def test_the_defaults_are_those_of_the_command() -> None:
    by_command = inspect.signature(typer_command(simulate, in_panels(simulate_options()))).parameters
    by_call = inspect.signature(gridml.simulate).parameters
    assert by_command.keys() - by_call.keys() == {"campaign", "as_json"}
    assert by_call.keys() - by_command.keys() == {"on_event", "display"}
    both = by_call.keys() & by_command.keys()
    assert {name: by_call[name].default for name in both} == {name: by_command[name].default for name in both}


def test_arrays_come_as_arrays(tallies: ModuleType, tmp_path: Path) -> None:
    run = gridml.simulate(tallies.program, workers=2, cost=COSTS, run_dir=tmp_path / "run")
    final = gridml.load(run)
    assert set(final) == {"Word.count", "Level.value", "Document.mood", "Document.visits"}
    counted = tallies.counted(np.full(tallies.COUNT, tallies.EPOCHS))
    assert final["Word.count"].tolist() == counted["Word/count"].tolist()
    assert gridml.load(run, "e1")["Word.count"].sum() * tallies.EPOCHS == final["Word.count"].sum()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker": 2}, "gridml.simulate got worker=…, which is no option of it; did you mean workers?"),
        ({"workers": "two"}, "gridml.simulate got workers='two'; expected a whole number."),
        ({"lifetime": "soon"}, "soon"),
        ({"campaign": 3}, "which is no option of it"),
        ({"no_push": 1}, "gridml.simulate got no_push=1; expected True or False."),
    ],
    ids=["a name", "a type", "a value", "elsewhere", "a flag"],
)
def test_options_that_make_no_sense(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        gridml.simulate(run_dir=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert said in str(refused.value) and not (tmp_path / "run").exists()


def test_what_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"got int as its program; expected a gridml\.Program or the path"):
        gridml.simulate(3, run_dir=tmp_path / "run")  # type: ignore[arg-type]


def test_a_program_without_a_name(tallies: ModuleType, tmp_path: Path) -> None:
    nameless = gridml.Program(tallies.graph, tallies.train)
    with pytest.raises(ProgramError, match="has bound to a name"):
        gridml.simulate(nameless, run_dir=tmp_path / "run")


def test_what_on_event_raises_reaches_the_caller(tmp_path: Path) -> None:
    def refuse(event: gridml.Event) -> None:
        raise RuntimeError(event.topic)

    with pytest.raises(RuntimeError):
        gridml.simulate(cost=COSTS, vertices=100, workers=1, run_dir=tmp_path / "run", on_event=refuse)
