"""A run that makes no headway says why, and one that makes some does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunk_model.families import Exponential, Normal
from chunk_model.goodput import Costs
from gridml.errors import RunError
from master.backends.local import overload
from master.backends.script import ScriptedLives
from master.fleet.crash_loop import HeadwayFacts, Stall, judge_headway, max_fruitless_lives
from master.simulation import cost_only_worker
from master.simulation.faulty_network import Chances
from master.simulation.scenario import Absent, MachineSpeeds, Scenario, Storms
from master.simulation.world import play_scenario
from master.store.reader import connect
from master.store.settings import Settings
from master.views.progress import read_progress

FINE = HeadwayFacts({}, {}, 4, 30, False, 10.0, 0.0, 9.0, 10.0)


def judged(**facts: Any) -> tuple[Stall | None, str]:
    return judge_headway(replace(FINE, **facts), "Give longer lives")


@pytest.mark.parametrize(
    ("facts", "cause", "words"),
    [
        ({"counts": {Stall.START: 30}}, "start", "before their first message.* 9 s .*takes 10 s. Give longer lives$"),
        ({"counts": {Stall.START: 30}, "boot_s": None}, "start", "no first message came"),
        ({"counts": {Stall.FIRST_CREDIT: 20, Stall.START: 10}}, "first credit", "20 of them after.*smaller --chunk"),
        (
            {"counts": {Stall.CRASH: 30}, "last": {Stall.CRASH: "w9: exit status 3: no disk"}},
            "crash",
            "The last one is w9: exit status 3: no disk. Its log is in logs/",
        ),
        ({"counts": {Stall.GIVEN_UP: 30}, "last": {Stall.GIVEN_UP: "w9: silent"}}, "given up", "w9: silent"),
        (
            {"counts": {Stall.FIRST_CREDIT: 40, Stall.FAILURE: 20}, "last": {Stall.FAILURE: "KeyError: 'x'"}},
            "failure",
            "failed 20 times, the last time with: KeyError: 'x'",
        ),
        ({"counts": {Stall.REFUSED: 30}, "last": {Stall.REFUSED: "NaN"}}, "refused", "30 pushes .* because NaN"),
        (
            {"running": 0, "unstaffed_s": 900.0, "last": {Stall.NO_MACHINE: "3 wait in the queue, 1 are held: {x}"}},
            "no machine",
            "for 15 min: 3 wait in the queue, 1 are held: {x}",
        ),
        (
            {"counts": {Stall.AVOIDED: 4}, "idle_s": 130.0, "last": {Stall.AVOIDED: "OSError"}},
            "avoided",
            "all 4 workers that run failed.*OSError",
        ),
    ],
)
def test_each_cause_is_told_from_the_others_and_has_an_advice(facts: Mapping[str, Any], cause: str, words: str) -> None:
    found, reason = judged(**facts)
    assert found == cause
    assert re.search(words.replace("{", r"\{"), reason), reason


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"counts": {Stall.START: 29}},
        {"counts": {Stall.START: 200}, "is_any_older": True},
        {"counts": {Stall.REFUSED: 29}},
        {"running": 0, "unstaffed_s": 500.0},
        {"counts": {Stall.AVOIDED: 3}, "idle_s": 1000.0},
        {"counts": {Stall.AVOIDED: 4}, "idle_s": 100.0},
    ],
)
def test_what_a_run_that_makes_headway_meets_is_no_cause(facts: Mapping[str, Any]) -> None:
    assert judged(**facts)[0] is None


def test_the_row_of_lives_that_may_bring_nothing_grows_with_their_rarity_and_with_the_workers() -> None:
    assert [max_fruitless_lives(*known)[0] for known in ((0, 0, 4), (100, 99, 1), (100, 10, 1), (100, 99, 50))] == [
        30,
        10,
        93,
        150,
    ]


def test_a_machine_with_a_load_of_more_than_twice_its_cores_is_overloaded() -> None:
    assert overload(4.0, 2) == ""
    assert "2 cores and a load of 20" in overload(20.0, 2)


def played(folder: Path, scenario: Scenario, workers: int, **chosen: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Play a scenario; return its events of headway, as (text, facts)."""
    folder.mkdir(exist_ok=True)
    program, recorded = folder / "costs.py", []
    program.write_text(cost_only_worker.source(600 * workers, 2))
    settings = Settings(program, backend="simulated", workers=workers, **chosen)

    def report(topic: str, text: str, facts: Mapping[str, Any]) -> None:
        if topic == "headway":
            recorded.append((text, facts))

    play_scenario(settings, scenario, folder / "run", report)
    return recorded


def test_a_simulated_run_whose_workers_boot_for_longer_than_they_live_names_it(tmp_path: Path) -> None:
    lives = ScriptedLives(4, Normal(9.0, 2.0), late=0, grace_s=0.0)
    scenario = Scenario(lives, Costs(exec_s=0.01, start_s=0.1, boot_s=30.0), limit_s=600.0, turn_s=0.1)
    with pytest.raises(RunError, match="has not finished"):
        played(tmp_path, scenario, 4)
    connection = connect(tmp_path / "run")
    rows = connection.execute("SELECT at_s, text, facts FROM events WHERE topic = 'headway' ORDER BY at_s").fetchall()
    began_s = connection.execute("SELECT min(submitted_s) FROM workers").fetchone()[0]
    assert re.search("of them before their first message: they lived .* and no first message came", rows[0][1])
    assert rows[0][0] - began_s <= 120.0
    assert 3 <= len(rows) <= 8  # again each time that it has lasted twice as long
    progress = read_progress(connection, rows[-1][0])
    assert progress.no_headway is not None and progress.no_headway.cause == "start"
    assert progress.seconds_left is None
    connection.close()


@pytest.mark.parametrize("mean_s", [20.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_finishes_under_heavy_evictions_raises_no_alarm(tmp_path: Path, seed: int, mean_s: float) -> None:
    """Workers boot for 5 s and are taken away after 20 s on average, in storms half of them at once."""
    lives = Absent(ScriptedLives(12, Exponential(mean_s), seed=seed, gap_s=5.0, grace_s=5.0), 0.1, seed)
    scenario = Scenario(
        Storms(lives, 60.0, 0.5, seed),
        Costs(exec_s=0.2, start_s=2.0, push_s=0.1, boot_s=5.0),
        MachineSpeeds(0.2, 4.0, 0.4),
        Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=2.0),
        turn_s=0.5,
        limit_s=1e5,
        seed=seed,
    )
    assert played(tmp_path, scenario, 12) == []
