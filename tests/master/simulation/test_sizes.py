"""Sizes in simulated runs follow lifetimes and speeds, epochs do not wait for slow machines, and credits stay exact."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from master.backends.script import Script, ScriptedLives, Steady
from master.leases import policy
from master.leases.sizing import ChunkSizing
from master.simulation import cost_only_worker
from master.simulation.result import fingerprint
from master.simulation.scenario import Machine, MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.telemetry.measures import Measures
from master.views.report import report
from tests.support.effort import first

COSTS = Costs(exec_s=0.1, start_s=1.0, push_s=0.1, boot_s=2.0)


@dataclass(frozen=True)
class Played:
    """A simulated run that has finished."""

    root: Path

    def rows(self, query: str) -> list[tuple[float, ...]]:
        db = sqlite3.connect(self.root / "ledger.db")
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()

    def one(self, query: str) -> float:
        return self.rows(query)[0][0]

    @property
    def epoch_s(self) -> float:
        return self.one("SELECT max(closed_s) - min(opened_s) FROM epochs")

    @property
    def wait_s(self) -> float:
        """Mean time that a worker waits at the end of an epoch: from its last credit to the end."""
        return self.one(
            "SELECT avg((SELECT max(closed_s) FROM epochs) - last) FROM "
            "(SELECT max(at_s) AS last FROM credits GROUP BY worker)"
        )


Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return a function that plays a run and checks that every vertex was credited exactly once."""
    number = 0

    def play(
        script: Script,
        vertices: int,
        *,
        costs: Costs = COSTS,
        speeds: MachineSpeeds | None = None,
        chunk: int | None = None,
        push_every: int | None = None,
        crash_every_s: float | None = None,
        travel_s: float = 0.0,
        seed: int = 0,
    ) -> Played:
        nonlocal number
        number += 1
        program, root = tmp_path / f"cost{number}.py", tmp_path / f"run{number}"
        program.write_text(cost_only_worker.source(vertices, 1))
        settings = Settings(program, backend="simulated", workers=script.slots, chunk=chunk, push_every=push_every)
        scenario = Scenario(
            script,
            costs,
            speeds or MachineSpeeds(),
            crash_every_s=crash_every_s,
            travel_s=travel_s,
            limit_s=1e5,
            seed=seed,
        )
        play_scenario(settings, scenario, root)
        shown = report(root)
        assert (shown.credited, shown.duplicated, shown.lost) == (vertices, 0, 0)
        return Played(root)

    return play


def living(workers: int, mean_s: float, seed: int = 1, graceful_share: float = 0.5) -> ScriptedLives:
    return ScriptedLives(workers, Exponential(mean_s), seed=seed, graceful_share=graceful_share, late=0)


def sizes_of(run: Played) -> tuple[float, float]:
    """Return (vertices of a whole chunk by the model, mean vertices between two later pushes)."""
    chunk = run.one("SELECT max(stop - start) FROM leases WHERE reason LIKE '%for lives of%' AND id > 100")
    push = run.one("SELECT avg(stop - start) FROM credits WHERE at_s > (SELECT avg(at_s) FROM credits)")
    return chunk, push


def test_sizes_follow_lifetimes(play: Play) -> None:
    # Long-lived machines get chunks that are worth their start; short-lived ones push before they die.
    costs = Costs(exec_s=0.1, start_s=5.0, push_s=0.2)
    short_chunk, short_push = sizes_of(play(living(16, 60.0), 300_000, costs=costs))
    long_chunk, long_push = sizes_of(play(living(16, 3600.0), 300_000, costs=costs))
    print(f"chunks {short_chunk:.0f} and {long_chunk:.0f}, pushes {short_push:.0f} and {long_push:.0f} vertices")
    assert long_chunk > short_chunk
    assert long_push > 1.5 * short_push


def test_every_change_is_in_the_ledger_with_its_reason(play: Play) -> None:
    run = play(living(16, 300.0), 50_000)
    reported = run.rows("SELECT at_s, text FROM events WHERE topic = 'sizing' ORDER BY at_s")
    assert reported
    assert all("vertices a chunk" in str(text) and "Lives: " in str(text) for _, text in reported)
    moments = [at_s for at_s, _ in reported]
    assert all(after - before >= 15 for before, after in itertools.pairwise(moments))


def test_what_is_asked_for_wins(play: Play) -> None:
    run = play(living(8, 120.0), 20_000, chunk=50, push_every=25)
    assert run.one("SELECT max(stop - start) FROM leases") <= 51  # no rest of less than a batch is left
    assert not run.rows("SELECT text FROM events WHERE topic = 'sizing'")


def test_the_last_wave_is_short_where_speeds_differ(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    machines, speeds = Steady(32), MachineSpeeds(sigma=0.7)
    shrinking = play(machines, 60_000, speeds=speeds)

    def fixed(facts: policy.ChunkFacts) -> tuple[int, str]:
        return min(facts.left, 60_000 // 32 // policy.SHARE), "always the same"

    monkeypatch.setattr(policy, "chunk_size", fixed)
    monkeypatch.setattr(policy, "max_vertices", lambda *args, **named: (None, "no limit"))
    monkeypatch.setattr(policy, "cut", lambda *args: (None, "never"))
    monkeypatch.setattr(policy, "reassign", lambda *args: (None, "never"))
    same = play(machines, 60_000, speeds=speeds)
    print(
        f"workers wait {shrinking.wait_s:.1f} s at the end of an epoch of {shrinking.epoch_s:.0f} s; with fixed chunks "
        f"{same.wait_s:.1f} of {same.epoch_s:.0f} s"
    )
    assert shrinking.wait_s < same.wait_s / 4
    assert shrinking.epoch_s < same.epoch_s


@dataclass(frozen=True)
class OneSlow(MachineSpeeds):
    """One machine is a hundred times slower than the others."""

    def of(self, slot: int, seed: int) -> Machine:
        return Machine(0.01) if slot == 0 else Machine()


def test_one_slow_machine_does_not_hold_the_epoch(play: Play) -> None:
    without = play(Steady(15), 30_000)
    with_it = play(Steady(16), 30_000, speeds=OneSlow())
    print(f"{without.epoch_s:.1f} s without the slow machine, {with_it.epoch_s:.1f} s with it")
    assert with_it.epoch_s < 1.1 * without.epoch_s
    stragglers = with_it.rows("SELECT text FROM events WHERE topic = 'straggler'")
    assert stragglers
    assert "leased a second time" in str(stragglers[0][0])


QUICK, SLOW = Costs(exec_s=0.001, start_s=0.1, push_s=0.05), Costs(exec_s=0.01, start_s=0.1, push_s=0.05)


@pytest.mark.parametrize(
    ("workers", "travel_s", "costs"),
    [
        (8, 0.0, replace(QUICK, push_s=3.0)),
        (8, 0.5, QUICK),
        (8, 2.0, QUICK),
        (32, 5.0, QUICK),
        (16, 20.0, SLOW),
        (8, 30.0, QUICK),
        (8, 2.0, replace(QUICK, push_s=20.0)),
        (16, 10.0, replace(SLOW, push_s=10.0, copy_s=0.01)),
        (16, 30.0, replace(SLOW, exec_s=0.1, push_s=3.0, start_s=5.0)),
    ],
)
def test_what_is_under_way_is_not_overtaken(
    play: Play, monkeypatch: pytest.MonkeyPatch, workers: int, travel_s: float, costs: Costs
) -> None:
    run = play(Steady(workers), 20_000, costs=costs, travel_s=travel_s)
    monkeypatch.setattr(policy, "reassign", lambda *args: (None, "never"))
    never = play(Steady(workers), 20_000, costs=costs, travel_s=travel_s)
    assert run.epoch_s <= 1.1 * never.epoch_s


def test_an_epoch_ends_though_measures_say_that_nothing_takes_time(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measures, "delay", lambda *args: policy.Delay())
    monkeypatch.setattr(ChunkSizing, "around_s", lambda *args: 0.0)
    run = play(Steady(8), 20_000, costs=QUICK, travel_s=10.0)
    reassigned = run.one("SELECT count(*) FROM events WHERE topic = 'straggler'")
    print(f"{run.epoch_s:.0f} s, {reassigned} leases reassigned")
    assert reassigned


def test_chunks_at_the_end_are_worth_the_travel_of_their_messages(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(exec_s=0.05, start_s=2.0, push_s=0.2)
    run = play(Steady(32), 150_000, costs=costs, travel_s=15.0)
    refused = run.rows("SELECT closed_because FROM leases WHERE closed_because LIKE 'refused%'")
    monkeypatch.setattr(ChunkSizing, "around_s", lambda *args: 0.0)
    small = play(Steady(32), 150_000, costs=costs, travel_s=15.0)
    print(f"{run.epoch_s:.0f} s, {small.epoch_s:.0f} s with chunks that shrink to nothing")
    assert run.epoch_s < 0.9 * small.epoch_s
    assert not refused  # of what was under way, nothing was cut off


def sizes_of_kinds(run: Played) -> dict[str, tuple[int, float]]:
    """(vertices, seconds of work) of a chunk for each kind of machine, as the run last reported."""
    units, sizes = {"s": 1.0, "min": 60.0}, {}
    for (text,) in run.rows("SELECT text FROM events WHERE topic = 'sizing' ORDER BY at_s"):
        for kind, vertices, work, unit in re.findall(
            r"(x86_64(?: avx)?) get ([\d,]+) vertices a chunk \(([\d.]+) (s|min) of work\)", str(text)
        ):
            sizes[kind] = int(vertices.replace(",", "")), float(work) * units[unit]
    return sizes


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_machines_with_avx_get_more_vertices_and_as_much_work(play: Play, seed: int) -> None:
    costs = Costs(exec_s=0.5, start_s=5.0, push_s=0.5, boot_s=10.0)
    speeds = MachineSpeeds(fast=0.12, factor=4.0)
    # Without grace: a push from a slow machine that leaves early would size both kinds, in seconds, which then hold.
    lives = living(100, 300.0, seed, graceful_share=0.0)
    reported = sizes_of_kinds(play(lives, 60_000, costs=costs, speeds=speeds, seed=seed))
    assert reported.keys() == {"x86_64", "x86_64 avx"}
    (plain, plain_s), (fast, fast_s) = reported["x86_64"], reported["x86_64 avx"]
    print(f"{plain} and {fast} vertices, {plain_s:g} and {fast_s:g} s of work")
    assert fast / plain == pytest.approx(4.0, rel=0.15)
    assert fast_s == pytest.approx(plain_s, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_credits_are_exact_under_kills_crashes_and_second_leases(play: Play, seed: int) -> None:
    run = play(living(12, 90.0, seed), 12_000, speeds=MachineSpeeds(sigma=1.5), crash_every_s=60.0)
    assert run.one("SELECT count(*) FROM workers") > 12


def test_the_same_seed_gives_the_same_sizes(play: Play) -> None:
    first, second = (play(living(16, 60.0), 20_000, speeds=MachineSpeeds(sigma=1.0)) for _ in range(2))
    assert first.rows("SELECT text FROM events WHERE topic = 'sizing'")
    assert fingerprint(first.root) == fingerprint(second.root)
