"""A run asks for no more workers than it is long enough for, and records that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chunk_model.goodput import Costs
from gridml.cli.main import command_line
from gridml.errors import UsageError
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.scaling import request
from master.simulation import cost_only_worker
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import STEPS_EACH, Settings
from master.views.report import report
from remote.stepped import Trainer

WANTED = 16
COSTS = Costs(exec_s=0.01, start_s=0.1, push_s=0.01, boot_s=0.5)
PROGRAMS = Path(__file__).parents[1] / "programs"
Play = Callable[..., Path]


@pytest.fixture
def play(programs: Path, tmp_path: Path) -> Play:
    def play(
        epochs: int,
        heard: Any = lambda *_: None,
        crash_every_s: float | None = None,
        **chosen: Any,
    ) -> Path:
        file, root = programs / "perceptron.py", tmp_path / "run"
        settings = Settings(file, "simulated", WANTED, epochs=epochs, options=SimulatedOptions(None, None), **chosen)
        scenario = Scenario(Steady(WANTED), COSTS, travel_s=0.01, crash_every_s=crash_every_s)
        play_scenario(settings, scenario, root, lambda *event: heard(root, *event), trainer=Trainer(file, COSTS))
        verify_credits(root)
        return root

    return play


def submitted(root: Path) -> int:
    with opened(root) as ledger:
        (count,) = ledger.execute("SELECT count(*) FROM workers").fetchone()
    return int(count)


def announced(root: Path) -> list[str]:
    with opened(root) as ledger:
        return [text for (text,) in ledger.execute("SELECT text FROM events WHERE topic = 'asked' ORDER BY rowid")]


def test_a_short_run_asks_for_few(play: Play) -> None:
    """The perceptron has 1,000 vertices, in batches of 32."""
    root = play(3)
    assert submitted(root) == 4
    assert announced(root) == [
        "4 workers are asked for, of 16 wanted: 3,000 vertices are 93 batches of 32, and of more than 4 workers each "
        "would train fewer than 150 (--steps-each 0 asks for all)"
    ]
    summary = report(root)
    assert (summary.workers, summary.asked) == (WANTED, 4)
    said = CliRunner().invoke(command_line(), ["status", str(root)])
    assert "4 workers are asked for, of 16 wanted: 3,000 vertices are 93 batches" in " ".join(said.output.split())
    answer = json.loads(CliRunner().invoke(command_line(), ["status", str(root), "--json"]).output)
    assert (answer["wanted"], answer["asked"]) == (WANTED, 4)


def test_a_longer_one_for_more(play: Play) -> None:
    root = play(30)
    assert submitted(root) == 6


def test_a_long_one_for_all(play: Play) -> None:
    """Here 16 workers train 15 batches each; without --steps-each that takes 77 epochs."""
    root = play(8, steps_each=15)
    assert submitted(root) == WANTED
    assert not announced(root)


def test_all_are_asked_for_with_steps_each_0(play: Play) -> None:
    root = play(3, steps_each=0)
    assert submitted(root) == WANTED
    assert not announced(root)


def test_later_masters_do_not_record_it_again(play: Play) -> None:
    root = play(30, crash_every_s=2.0)
    with opened(root) as ledger:
        (masters,) = ledger.execute("SELECT value FROM run WHERE key = 'masters'").fetchone()
    assert int(masters) >= 3
    assert len(announced(root)) == 1


def test_scaling_is_within_what_a_run_is_long_enough_for(play: Play) -> None:
    def heard(root: Path, topic: str, text: str, facts: object) -> None:
        if topic == "epoch":
            workers = {"1": 100, "10": 2, "20": 12}.get(text.split()[1])
            if workers is not None:
                request(root, workers)

    root = play(30, heard=heard)
    assert [text.partition(":")[0] for text in announced(root)] == [
        "6 workers are asked for, of 16 wanted",
        "6 workers are asked for, of 100 wanted",
        "2 workers are asked for, all that are wanted",
        "6 workers are asked for, of 12 wanted",
    ]


def test_a_limit_that_no_longer_applies_is_not_shown(play: Play) -> None:
    """Six of sixteen, then two, then three: status and report no longer show a limit."""

    def heard(root: Path, topic: str, text: str, facts: object) -> None:
        if topic == "epoch" and text.startswith(("epoch 1 ", "epoch 10 ")):
            request(root, 2 if text.startswith("epoch 1 ") else 3)

    root = play(30, heard=heard)
    assert report(root).asked is None
    output = CliRunner().invoke(command_line(), ["status", str(root)]).output
    assert "asked for" not in output


def test_counts_are_not_averaged(tmp_path: Path) -> None:
    """Parallel training loses nothing if no replica is averaged, so no limit applies."""
    program, root = tmp_path / "costs.py", tmp_path / "run"
    program.write_text(cost_only_worker.source(100, 1))
    settings = Settings(program, "simulated", WANTED, options=SimulatedOptions())
    play_scenario(settings, Scenario(Steady(WANTED), COSTS), root)
    assert submitted(root) == WANTED
    assert not announced(root)


def shared(root: Path, push_s: float = 0.003, workers: int = WANTED, crash_every_s: float | None = None) -> list[str]:
    """Play a run whose steps can be added: 9,600 vertices in batches of 64, of which each takes 3 ms. Return what was
    said about the number of workers."""
    file, costs = PROGRAMS / "steep.py", Costs(exec_s=0.003, start_s=0.1, push_s=push_s, boot_s=1.0)
    settings = Settings(file, "simulated", workers, options=SimulatedOptions(None, None))
    scenario = Scenario(Steady(workers), costs, travel_s=0.0005, turn_s=0.001, crash_every_s=crash_every_s)
    play_scenario(settings, scenario, root, trainer=Trainer(file, costs))
    verify_credits(root)
    return announced(root)


def test_where_steps_are_added_more_are_asked_for_once_pushes_are_known_to_be_cheap(tmp_path: Path) -> None:
    root = tmp_path / "run"
    first, *more = shared(root)
    assert first.startswith("4 workers are asked for, of 16 wanted: ")
    assert first.endswith("; more are asked for if pushes turn out to be cheap (--steps-each 0 asks for all)")
    assert more == ["16 workers are asked for, all that are wanted"]
    assert submitted(root) == WANTED and report(root).asked is None


def test_no_more_are_asked_for_than_share_a_batch(tmp_path: Path) -> None:
    *_, last = shared(tmp_path / "run", workers=20)
    assert last == (
        "16 workers are asked for, of 20 wanted: no more than 16 workers share a batch (--steps-each 0 asks for all)"
    )


def test_where_pushes_are_dear_they_are_as_many_as_the_run_is_long_enough_for(tmp_path: Path) -> None:
    assert len(shared(tmp_path / "run", push_s=0.3)) == 1
    assert submitted(tmp_path / "run") == 4


def test_a_later_master_begins_with_the_number_of_the_one_before(tmp_path: Path) -> None:
    """It has measured nothing yet, and releases no worker for that."""
    said = shared(tmp_path / "run", crash_every_s=1.0)
    with opened(tmp_path / "run") as ledger:
        (masters,) = ledger.execute("SELECT value FROM run WHERE key = 'masters'").fetchone()
    assert int(masters) >= 3
    assert len(said) == 2


@pytest.mark.parametrize("verb", ["run", "simulate"])
def test_help_names_what_is_usual(verb: str) -> None:
    """Commands do not load the master for their help, so the number is repeated in its text."""
    text = CliRunner().invoke(command_line(), [verb, "--help"]).output.replace("│", " ")
    assert f"fewer workers are requested; 0: never fewer. [default: {STEPS_EACH}]" in " ".join(text.split())


@pytest.mark.parametrize("given", [-1, 10**9 + 1])
def test_a_number_that_makes_no_sense_is_refused(given: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"--steps-each is {given:,}; expected from 0 to 1,000,000,000"):
        Settings(tmp_path / "program.py", steps_each=given)
