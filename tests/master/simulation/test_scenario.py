"""Scenarios: drawn from the seed alone; invalid ones are refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.errors import UsageError
from master.backends.script import ScriptedLives, Steady
from master.simulation.scenario import POINTS, Absent, Machine, MachineSpeeds, ManyLives, Scenario, Storms
from remote import fitness

COSTS = Costs(exec_s=1.0)


@given(st.integers(0, 2**31), st.integers(0, 30), st.floats(0, 1e5))
def test_a_storm_takes_a_machine_after_it_has_opened(seed: int, slot: int, free_s: float) -> None:
    storms = Storms(Steady(31), 100.0, 0.3, seed)
    life = storms.life(slot, 0, free_s)
    assert life is not None
    assert life.closes_s is not None
    assert life.closes_s > life.opens_s == free_s


def test_a_storm_takes_its_share_of_all_machines_at_one_instant() -> None:
    storms = Storms(Steady(1000), 100.0, 0.3, 7)
    lives = [storms.life(slot, 0, 0.0) for slot in range(1000)]
    ends = [life.closes_s for life in lives if life is not None]
    first, taken = np.unique(ends, return_counts=True)
    assert first[0] < 100.0
    assert taken[0] == pytest.approx(300, abs=60)


def test_storms_come_once_an_interval_and_the_same_whoever_asks_first() -> None:
    one, two = (Storms(Steady(50), 10.0, 1.0, 3) for _ in range(2))
    forwards = [one.life(slot, 0, at_s) for slot in range(50) for at_s in (0.0, 500.0)]
    backwards = [two.life(slot, 0, at_s) for slot in reversed(range(50)) for at_s in (500.0, 0.0)]
    assert forwards == backwards[::-1]
    moments, at_s = [], 0.0
    for _ in range(200):  # more than are remembered
        life = one.life(0, 0, at_s)
        assert life is not None
        assert life.closes_s is not None
        at_s = life.closes_s
        moments.append(at_s)
    assert [math.floor(moment / 10.0) for moment in moments] == list(range(200))


def test_a_machine_that_no_storm_takes_for_long_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storms, "_storm", lambda storms, interval: (interval * 100.0, np.zeros(1, np.bool_)))
    life = Storms(Steady(1), 100.0, 0.01).life(0, 0)
    assert life is not None and life.closes_s is None


def test_a_storm_ends_only_what_its_base_does_not_end_before() -> None:
    storms = Storms(Absent(ScriptedLives(4, Exponential(5.0), late=0), 0.5, 1), 1e6, 1.0, 1)
    lives = [storms.life(slot, 0) for slot in range(4)]
    assert sum(life is None for life in lives) == 2
    assert storms.machine(2) == "slot-3"


def test_absent_machines_never_come_and_the_others_do() -> None:
    script = Absent(Steady(10), 0.3, 5)
    missing = {slot for slot in range(10) if script.life(slot, 0) is None}
    assert len(missing) == 3
    assert {slot for slot in range(10) if script.life(slot, 9, 1e6) is None} == missing
    assert script.slots == 10


def test_many_lives_have_the_law_they_are_drawn_from_whatever_the_order() -> None:
    law = Exponential(40.0)
    script = ManyLives(20, law, seed=2, graceful_share=0.25, grace_s=3.0, gap_s=10.0)
    lives = [script.life(slot, k, 100.0) for slot in range(20) for k in range(100)]
    assert np.mean([life.duration_s for life in lives]) == pytest.approx(40.0, rel=0.1)
    assert np.mean([life.graceful for life in lives]) == pytest.approx(0.25, abs=0.05)
    gaps = [life.opens_s - 100.0 for life in lives]
    assert np.mean(gaps) == pytest.approx(10.0 * 0.99, rel=0.1)
    assert all(lives[slot * 100].opens_s == 100.0 for slot in range(20))  # the first comes at once
    assert [script.life(slot, k, 100.0) for k in reversed(range(100)) for slot in range(20)] == [
        lives[slot * 100 + k] for k in reversed(range(100)) for slot in range(20)
    ]


def test_speeds_are_of_machines_and_as_declared() -> None:
    speeds = MachineSpeeds(fast=0.25, factor=4.0)
    machines = [speeds.of(slot, 1) for slot in range(2000)]
    assert set(machines) == {Machine(1.0, "x86_64"), Machine(4.0, "x86_64 avx")}
    assert np.mean([machine.speed == 4.0 for machine in machines]) == pytest.approx(0.25, abs=0.03)
    assert machines == [speeds.of(slot, 1) for slot in range(2000)]
    spread = np.log([MachineSpeeds(sigma=0.5).of(slot, 1).speed for slot in range(2000)])
    assert np.std(spread) == pytest.approx(0.5, abs=0.03)
    assert np.median(spread) == pytest.approx(0.0, abs=0.05)
    assert MachineSpeeds().of(3, 1) == Machine(1.0, "x86_64")


def test_kinds_of_machines_are_named_as_by_real_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for flags, speeds in (("sse sse2", MachineSpeeds()), ("sse sse2 avx", MachineSpeeds(fast=1.0, factor=4.0))):
        (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
        assert speeds.of(0, 1).kind == fitness.kind(proc=tmp_path)


def test_masters_are_killed_that_often_at_every_point_and_some_as_they_wake() -> None:
    scenario = Scenario(Steady(1), COSTS, crash_every_s=100.0, seed=4)
    crashes = [scenario.crash(k) for k in range(2000)]
    lives = np.array([crash[0] for crash in crashes if crash is not None])
    assert len(lives) == 2000
    assert lives[0] > 0  # the first master takes nothing over
    assert np.mean(lives == 0) == pytest.approx(0.25, abs=0.03)
    assert np.mean(lives[lives > 0]) == pytest.approx(100.0, rel=0.1)
    assert {crash[1] for crash in crashes if crash is not None} == {*POINTS}
    assert Scenario(Steady(1), COSTS).crash(0) is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MachineSpeeds(fast=1.5), "share of fast machines is 1.5"),
        (lambda: MachineSpeeds(factor=0.0), "0.0 times as fast"),
        (lambda: MachineSpeeds(sigma=math.nan), "spread of speeds is nan"),
        (lambda: Storms(Steady(1), 0.0, 0.5), "storms come every 0.0 s"),
        (lambda: Scenario(Steady(1), COSTS, travel_s=-1.0), "a message takes -1.0 s"),
        (lambda: Scenario(Steady(1), COSTS, travel_s=math.nan), "a message takes nan s"),
        (lambda: Storms(Steady(1), 1.0, 0.0), "a share 0.0"),
        (lambda: Storms(Steady(1), 1.0, 1e-4), "expected 0.001 to 1"),
        (lambda: MachineSpeeds(factor=1e4), "from 0.001 to 1000"),
        (lambda: MachineSpeeds(sigma=3.0), "from 0 to 2"),
        (lambda: Scenario(Steady(1), COSTS, chunks_per_job=-1), "--chunks-per-job is -1"),
        (lambda: Scenario(Steady(1), COSTS, seed=2**32), "--seed is 4294967296"),
        (lambda: Absent(Steady(1), 1.0), "a share 1.0"),
        (lambda: Scenario(Steady(1), COSTS, crash_every_s=0.0), "crashes every 0.0 s"),
        (lambda: Scenario(Steady(1), COSTS, turn_s=0.0), "every 0.0 s"),
        (lambda: Scenario(Steady(1), COSTS, limit_s=0.0), "may take 0.0 s"),
        (lambda: Scenario(Steady(1), COSTS, merge_s=-1.0), "merging a push takes -1.0 s"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=says):
        make()
