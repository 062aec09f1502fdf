"""Simulations that can never finish are refused before they begin, or ended once they make no progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunk_model.families import Exponential, Normal
from chunk_model.goodput import Costs
from gridml.errors import RunError, UsageError
from master.backends.script import ScriptedLives, Steady
from master.simulation import cost_only_worker
from master.simulation import world as stall
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import (
    MAX_LIVES,
    MAX_MASTERS,
    MAX_TURNS,
    MIN_TURNS,
    SinceCredit,
    check_lives,
    check_silence,
    check_stall,
    play_scenario,
)
from master.store.settings import Settings

LIFE = Normal(2700.0, 600.0)


def played(folder: Path, scenario: Scenario, vertices: int = 500) -> Path:
    program = folder / "costs.py"
    program.write_text(cost_only_worker.source(vertices, 1))
    settings = Settings(program, backend="simulated", workers=scenario.script.slots, silent_s=1e9)
    play_scenario(settings, scenario, folder / "run")
    return folder / "run"


def test_a_start_that_no_life_outlasts_is_refused_with_what_to_change() -> None:
    with pytest.raises(UsageError, match=r"no chunk could ever finish: .*start 7,200 s.*normal\(2700.*Give machines"):
        check_lives(LIFE, Costs(exec_s=1.0, start_s=7200.0), 1, 1.0, 120.0)
    check_lives(LIFE, Costs(exec_s=1.0, start_s=3600.0), 1, 1.0, 0.0)
    check_lives(LIFE, Costs(exec_s=1.0, start_s=5600.0), 1, 1.0, 1000.0)  # it works on during the grace period
    with pytest.raises(UsageError, match="no chunk"):
        check_lives(LIFE, Costs(exec_s=1.0, push_s=7200.0), 1, 1.0, 0.0)
    with pytest.raises(UsageError, match="no chunk"):
        check_lives(LIFE, Costs(exec_s=1.0), 10_000, 1.0, 0.0)
    check_lives(LIFE, Costs(exec_s=1.0), 10_000, 4.0, 0.0)


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        (Costs(1.0, start_s=1200.0), "1,200 s to start a chunk"),
        (Costs(1.0, copy_s=12.0), "1,200 s to start a chunk of 100 vertices"),
        (Costs(600.0), "1,200 s to train a vertex"),
        (Costs(1.0, end_s=1200.0), "1,200 s to end a chunk"),
        (Costs(1.0, push_s=1200.0), "1,200 s for a push"),
    ],
)
def test_what_takes_so_long_that_a_worker_would_be_taken_to_be_stuck_is_refused(costs: Costs, says: str) -> None:
    with pytest.raises(UsageError, match=rf"--silence is 120 s, but it takes {says}.*10 times.*such as --silence 240"):
        check_silence(costs, 0.5, 120.0, chunk=100)
    check_silence(costs, 0.5, 121.0, chunk=100)


def test_a_boot_longer_than_a_worker_may_be_silent_is_refused() -> None:
    with pytest.raises(UsageError, match="--silence is 120 s, but a worker's first message takes 120 s"):
        check_silence(Costs(1.0, boot_s=120.0), 1.0, 120.0)
    check_silence(Costs(1.0, boot_s=120.0), 1.0, 121.0)


def test_a_batch_counts_and_not_a_vertex_alone() -> None:
    with pytest.raises(UsageError, match="1,280 s to train a batch of 64 vertices"):
        check_silence(Costs(20.0), 1.0, 120.0, batch=64)


def test_a_first_message_that_comes_too_late_is_refused() -> None:
    costs = Costs(1.0, boot_s=60.0)
    with pytest.raises(UsageError, match=r"a worker's first message takes 120 s \(boot, --travel\)"):
        check_silence(costs, 1.0, 120.0, 60.0)
    check_silence(costs, 1.0, 121.0, 60.0)


@pytest.mark.parametrize(
    ("since", "says"),
    [
        (SinceCredit(10.0, 10, MAX_LIVES, 0), "5,000 lives began"),
        (SinceCredit(10.0, 10, 0, MAX_MASTERS), "--crash-every"),
        (SinceCredit(10.0, MAX_TURNS, 0, 0), "polled for messages 400,000 times"),
        (SinceCredit(101.0, MIN_TURNS, 0, 0), "no vertex was credited for 101 s"),
    ],
)
def test_a_run_that_does_not_go_on_is_ended(since: SinceCredit, says: str) -> None:
    with pytest.raises(RunError, match=says):
        check_stall(since, 10, 100.0)


@pytest.mark.parametrize(
    ("since", "machines"),
    [
        (SinceCredit(), 1),
        (SinceCredit(1e9, MIN_TURNS - 1, 0, 0), 10),  # the next machine comes late
        (SinceCredit(150.0, MIN_TURNS, 10, 0), 10),  # each machine has had one more life
        (SinceCredit(10.0, 10, MAX_LIVES, 0), 1000),
    ],
)
def test_a_run_that_may_go_on_is_left_alone(since: SinceCredit, machines: int) -> None:
    check_stall(since, machines, 100.0)


def test_lives_that_are_always_too_short_end_the_simulation(tmp_path: Path) -> None:
    script = ScriptedLives(20, Exponential(1.0), graceful_share=0.0)
    with pytest.raises(RunError, match=r"no vertex was credited .* lives began"):
        played(tmp_path, Scenario(script, Costs(exec_s=0.5, start_s=50.0), turn_s=0.5))
    assert verify_credits(tmp_path / "run").credited == 0


def test_a_master_that_is_always_killed_ends_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "MAX_MASTERS", 20)
    monkeypatch.setattr(Scenario, "crash", lambda scenario, k: (0.0, "before-commit"))
    with pytest.raises(RunError, match=r"20 masters took over: .*--crash-every"):
        played(tmp_path, Scenario(Steady(1), Costs(exec_s=1.0), restart_s=0.1))


def test_what_only_takes_long_comes_to_its_end(tmp_path: Path) -> None:
    assert verify_credits(played(tmp_path, Scenario(Steady(2), Costs(exec_s=1e3)), 50)).credited == 50


def test_times_beyond_what_the_clock_can_tell_end_the_simulation(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the limit of its clock"):
        played(tmp_path, Scenario(Steady(1), Costs(exec_s=1e12)))
