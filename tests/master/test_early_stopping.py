"""Early stopping: the run ends with its best replica saved, wherever its master is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from chunk_model.goodput import Costs
from gridml.errors import DamagedError, LedgerError, ProgramError
from gridml.protocol import bundle
from master.backends.script import Steady
from master.launch import resume
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import World, play_scenario
from master.store.reader import connect, read_facts
from master.store.saved_replica import read_best
from master.store.settings import Settings
from master.takeover import rollback
from master.views.render import render_report
from master.views.report import report
from remote.stepped import Trainer

COUNT, BEST = 60, 3
COSTS = Costs(exec_s=0.1, start_s=0.5, push_s=0.05)
CALM = Scenario(Steady(2), COSTS, turn_s=0.2)
Play = Callable[..., tuple[World, Path]]


@pytest.fixture
def play(programs: Path, tmp_path: Path) -> Play:
    """Return a function that plays the program with replacements in its text."""

    def played(*changes: tuple[str, str], scenario: Scenario = CALM, epochs: int | None = None) -> tuple[World, Path]:
        source = (programs / "stops.py").read_text()
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        program = tmp_path / "stops.py"
        program.write_text(source)
        settings = Settings(program, backend="simulated", workers=2, chunk=10, steps_each=0, epochs=epochs)
        return play_scenario(settings, scenario, tmp_path / "run", trainer=Trainer(program, COSTS)), tmp_path / "run"

    return played


def facts(root: Path) -> dict[str, Any]:
    with closing(connect(root)) as db:
        return read_facts(db)


def check_ended_well(root: Path, epochs: int, best: int = BEST) -> None:
    exact = verify_credits(root)
    assert (exact.epochs, exact.finished, exact.credited) == (epochs, epochs, epochs * COUNT)
    assert facts(root)["status"] == "finished"
    kept, tensors = read_best(root)
    assert (kept.epoch + 1, kept.goal, kept.value) == (best, "min:loss", 0.0)
    np.testing.assert_array_equal(tensors["Total/value"], [best * COUNT])
    _, final = bundle.decode((root / "final.safetensors").read_bytes())
    np.testing.assert_array_equal(final["Total/value"], [epochs * COUNT])
    assert not (root / "best.next.safetensors").exists()


def test_it_ends_when_it_has_trained_enough(play: Play) -> None:
    _, root = play()
    check_ended_well(root, BEST + 1)
    result = report(root)
    assert result.stopped_early is not None and "not brought loss further" in result.stopped_early
    assert result.epochs_wanted == BEST + 1
    assert result.best is not None and result.best["epoch"] == BEST
    json.dumps(result.to_json())
    console = Console(width=200)
    with console.capture() as shown:
        console.print(render_report(result))
    assert "stopped early" in shown.get() and "min:loss 0, after epoch 3" in shown.get()
    log = (root / "events.log").read_text()
    assert log.count("stopping ") == 1 and log.count("it is kept") == BEST


@pytest.mark.parametrize("patience", [2, 4])
def test_patience_is_waited_for(play: Play, patience: int) -> None:
    _, root = play(("patience=1", f"patience={patience}"))
    exact = verify_credits(root)
    assert exact.epochs == exact.finished == BEST + patience


@pytest.mark.parametrize("point", ["before-metrics", "after-metrics", "after-commit", "after-backup"])
def test_a_master_killed_around_an_evaluation_changes_nothing(
    play: Play, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scenario, "crash", lambda scenario, k: (0.5 + k % 3, point) if k < 6 else None)
    reached = World._reached
    points = []

    def note(world: World, at: str) -> None:
        points.append(at)
        reached(world, at)

    monkeypatch.setattr(World, "_reached", note)
    world, root = play(scenario=Scenario(Steady(2), COSTS, turn_s=0.2, crash_every_s=1.0))
    assert world.masters > 3 and point in points
    check_ended_well(root, BEST + 1)


def test_evaluate_every_says_which_epochs_are_evaluated(play: Play) -> None:
    never = ("early_stopping=gridml.early_stopping", "early_stopping=None and gridml.early_stopping")
    _, root = play(('keep="best:loss"', "evaluate_every=3"), never, epochs=7)
    assert [epoch.epoch for epoch in report(root).epochs if epoch.metrics] == [3, 6, 7]


def test_every_other_epoch_and_early_stopping(play: Play) -> None:
    every_other = ('keep="best:loss"', 'keep="best:loss", evaluate_every=2')
    _, root = play(every_other, ("abs(epochs - BEST)", "abs(epochs - 4)"))
    check_ended_well(root, 6, best=4)


def test_what_the_best_was_is_found_again_after_a_rollback(play: Play) -> None:
    _, root = play()
    check_ended_well(root, BEST + 1)
    rollback(root, "e2", lambda: 2e6)
    with pytest.raises(LedgerError, match="has kept no best replica"):
        read_best(root)
    assert not (root / "best.safetensors").exists()
    program = root.parent / "stops.py"
    world = World(Settings(program, "simulated", 2, chunk=10, steps_each=0), CALM, Trainer(program, COSTS))
    run = resume(root, world.environment(lambda topic, text, facts: None))
    world.drive(run)
    with run:
        run.finish()
    check_ended_well(root, BEST + 1)
    since = (root / "events.log").read_text().rpartition("resumed")[2]
    assert since.index("epoch 2 has the best loss so far, 1;") < since.index("epoch 3 has the best loss so far, 0;")


def test_a_missing_metric_ends_the_run_with_an_error(play: Play) -> None:
    with pytest.raises(
        ProgramError, match=r"has the goal min:loss, and evaluate returned counted, .*; expected a number"
    ):
        play(('"loss": abs', '"lost": abs'))


def test_a_best_replica_that_is_damaged_is_said_to_be(play: Play) -> None:
    _, root = play()
    path = root / "best.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DamagedError, match=r"best\.safetensors is damaged"):
        read_best(root)
    path.unlink()
    with pytest.raises(DamagedError, match=r"best\.safetensors, the best replica, is gone"):
        read_best(root)


def test_a_metric_that_falls_with_noise_is_not_the_end(play: Play) -> None:
    """Two evaluations without progress end nothing after epochs 5 and 8, where the trend falls; after 9 it rises."""
    noisy = ("abs(epochs - BEST)", "(5.0, 4.0, 2.0, 3.0, 2.5, 1.0, 2.0, 1.5, 2.5)[int(epochs) - 1]")
    _, root = play(("patience=1", "patience=2"), noisy, epochs=30)
    exact, result = verify_credits(root), report(root)
    assert (exact.epochs, exact.finished, result.best and result.best["epoch"]) == (9, 9, 6)
    assert (
        result.stopped_early is not None and "over the last 5 evaluations it changes by +0.05" in result.stopped_early
    )


@pytest.mark.parametrize("diverged", ["inf", "-inf", "nan"])
def test_a_diverged_replica_is_not_kept(play: Play, diverged: str) -> None:
    _, root = play(("patience=1", "patience=2"), ("abs(epochs - BEST)", f'float("{diverged}" if epochs != 2 else 1)'))
    result = report(root)
    assert result.best is not None and (result.best["epoch"], result.best["value"]) == (2, 1.0)
    assert (root / "events.log").read_text().count("it is kept") == 1
