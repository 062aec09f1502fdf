"""Campaigns with all kinds of faults at once: credits stay exact, and a seed replays its run."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from chunk_model.families import Normal
from chunk_model.goodput import Costs
from gridml.errors import LedgerError, UsageError
from master.backends.script import Replay
from master.simulation import campaign as module
from master.simulation.campaign import DrawnLives, Played, campaign, can_finish, draw, play_seed
from master.simulation.faulty_network import Chances
from master.simulation.result import VerifiedCredits
from master.simulation.scenario import Absent, Storms


def test_thousands_of_kills_with_every_kind_of_fault_leave_every_credit_exact(tmp_path: Path) -> None:
    heard: list[Played] = []
    played = campaign(4000, seed=1, folder=tmp_path, report=heard.append)
    assert played.kills >= 4000
    assert 0 < played.graceful < played.kills
    assert played.masters > 2 * played.runs  # masters were killed, too,
    assert 0 < played.lost < played.sent  # and messages lost
    assert heard[-1] == played
    assert [one.runs for one in heard] == list(range(1, played.runs + 1))
    assert not list(tmp_path.iterdir())  # runs that passed are removed


def test_hostile_machines_spoil_no_run(tmp_path: Path) -> None:
    """A lone surrogate in a text ended the master with UnicodeEncodeError, a second of 1e-320 with OverflowError."""
    for seed, least in ((8, 200), (9, 2000)):
        assert draw(seed).scenario.hostile > 0.1
        assert play_seed(seed, tmp_path).hostile > least


def test_what_is_drawn_can_finish() -> None:
    assert all(can_finish(draw(seed))[0] for seed in range(301))


def test_what_cannot_finish_is_not_drawn_and_the_reason_is_given() -> None:
    run = draw(1)
    lives = DrawnLives(Normal(10.0, 2.5), graceful=0.0, grace_s=0.0)
    costs = Costs(exec_s=0.1, start_s=0.5, push_s=0.1)
    scenario = replace(run.scenario, costs=costs, faults=Chances(delay_s=1.0), travel_s=0.0)
    run = replace(run, scenario=scenario, lives=lives, chunk=50, push_every=None, silent_s=20.0)
    assert can_finish(run)[0]
    for hopeless, why in (
        (replace(run, chunk=400), "takes 31.6 s"),  # pushed by the clock, after 30 s, which no life lasts
        (replace(run, silent_s=0.4), "--silence is 0.4 s"),
        (replace(run, scenario=replace(scenario, costs=replace(costs, boot_s=30.0))), "takes 36.6 s"),
    ):
        able, reason = can_finish(hopeless)
        assert not able and why in reason
    assert can_finish(replace(run, chunk=400, lives=replace(lives, graceful=0.5, grace_s=2.0)))[0]
    assert not can_finish(replace(run, chunk=400, lives=replace(lives, graceful=0.5, grace_s=0.05)))[0]


def test_a_seed_plays_the_same_again(tmp_path: Path) -> None:
    assert draw(396).scenario.hostile > 0.1
    assert play_seed(396, tmp_path) == play_seed(396, tmp_path)


def test_the_scenarios_differ_and_every_kind_of_machine_is_among_them() -> None:
    scripts = []
    for seed in range(40):
        script = draw(seed).scenario.script
        while isinstance(script, Storms | Absent):
            scripts.append(type(script).__name__)
            script = script.base
        scripts.append(type(script).__name__)
        assert isinstance(script, Replay) or script.slots == draw(seed).workers
    assert {*scripts} == {"Storms", "Absent", "Replay", "ManyLives"}
    assert len({draw(seed).vertices for seed in range(40)}) > 35


def test_a_failure_names_the_seed_and_keeps_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(root: Path) -> VerifiedCredits:
        raise LedgerError("epoch 1: [3, 4) is credited in version 1 and credited in version 2")

    monkeypatch.setattr(module, "verify_credits", wrong)
    with pytest.raises(LedgerError, match=r"seed 12 is wrong: .*\[3, 4\).*play_seed\(12\)"):
        campaign(10, seed=12, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    with sqlite3.connect(kept / "run" / "ledger.db") as db:
        assert db.execute("SELECT count(*) FROM leases").fetchone()[0] > 0
    db.close()


def test_a_campaign_of_no_kills_is_refused() -> None:
    with pytest.raises(UsageError, match="0 kills"):
        campaign(0)
