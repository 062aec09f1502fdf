"""Replays of spot markets: the supply over time, and the time and cost of each way to use it."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.spot.plot import draw
from benchmarks.spot.replay import GRIDML, SETTINGS, STEP, panel, row, sooner, traffic
from benchmarks.spot.supply import NOTICE_S, Supply, Window, Windows, count_starts, from_counts, from_prices, on_demand
from benchmarks.spot.ways import BOOT_S, UNFINISHED, Job, Outcome, alone, restarted, with_gridml
from chunk_model.prices import Floats
from chunk_model.traces import Life, Record

HOUR = 3600.0
JOB = Job("small", 3_000, 2, 1.0, push_s=0.1, travel_s=0.1, merge_s=0.01, push_mb=0.1, save_s=5.0)


def series(*steps: tuple[float, float]) -> tuple[Floats, Floats]:
    time_s, price = np.array(steps, np.float64).T
    return time_s * HOUR, price


def spans(windows: tuple[Window, ...]) -> list[tuple[str, float, float]]:
    return [(each.market, each.opens_s, each.closes_s) for each in windows]


def test_the_cheapest_market_is_kept_until_its_price_exceeds_the_cap() -> None:
    markets = {
        "m/a": series((0, 0.1), (5, 0.3), (7, 0.1), (9, 9.0)),
        "m/b": series((0, 0.15), (4, 0.05), (6, 9.0)),
    }
    supply = from_prices(markets, 1 * HOUR, 3, 0.2, 0.5)
    first, second, third = spans(supply.places[0])[:3]
    assert first == ("m/a", 0.0, 4 * HOUR + NOTICE_S), "b got cheaper, but an instance stays in its market"
    assert second == ("m/b", 4 * HOUR + NOTICE_S, 5 * HOUR + NOTICE_S)
    assert third == ("m/a", 6 * HOUR, 8 * HOUR + NOTICE_S)
    assert len(supply.places) == 3 and supply.alike
    assert max(price for _, price in supply.prices["m/a"]) == 0.2, "prices are capped"


def test_a_notice_comes_before_the_end_and_short_windows_are_passed_over() -> None:
    places = ((Window("m/a", 0.0, 100.0), Window("m/a", 200.0, 1_000.0)),)
    noticed, unnoticed = (Windows(places, notice) for notice in (True, False))
    life = noticed.life(0, 0)
    assert life is not None and (life.opens_s, life.closes_s, life.graceful) == (200.0, 1_000.0 - NOTICE_S, True)
    life = unnoticed.life(0, 0)
    assert life is not None and (life.opens_s, life.closes_s, life.graceful) == (0.0, 100.0, False)
    assert noticed.life(0, 1, 950.0) is None


RECORD = Record((Life("i1", 0.0, 6 * HOUR), Life("i2", 2 * HOUR, 4 * HOUR), Life("i3", 5 * HOUR, None)), 8 * HOUR, "")


def test_counted_instances_share_places_and_the_trace_repeats() -> None:
    supply = from_counts({"m/a": RECORD}, HOUR, 0.5, 2.0)
    assert len(supply.places) == 2 and not supply.alike
    assert [each[1:] for each in spans(tuple(supply.together(2)))[:3]] == [
        (1 * HOUR, 3 * HOUR),
        (4 * HOUR, 5 * HOUR),
        (9 * HOUR, 11 * HOUR),
    ]
    one = supply.together(1)
    assert [(each.opens_s, each.closes_s) for each in one[:2]] == [(0.0, 5 * HOUR), (5 * HOUR, 7 * HOUR)]
    assert all(before.closes_s <= after.opens_s for before, after in pairwise(one))


def zones(**windows: list[tuple[float, float]]) -> Supply:
    """A place for each window of the markets m/a, m/b, ..., in hours."""
    places = [
        (Window(f"m/{zone}", opens_h * HOUR, closes_h * HOUR),)
        for zone, opened in windows.items()
        for opens_h, closes_h in opened
    ]
    return Supply(tuple(places), {f"m/{zone}": [(0.0, 1.0)] for zone in windows}, 2.0)


def test_places_of_several_zones_stay_in_their_market_and_traces_repeat_independently() -> None:
    shorter = Record((Life("i1", 1 * HOUR, 2 * HOUR),), 3 * HOUR, "")
    supply = from_counts({"m/a": RECORD, "m/b": shorter}, 0.0, 0.5, 2.0)
    assert [{each.market for each in place} for place in supply.places] == [{"m/a"}, {"m/a"}, {"m/b"}]
    assert spans(supply.places[2])[:2] == [("m/b", 1 * HOUR, 2 * HOUR), ("m/b", 4 * HOUR, 5 * HOUR)]
    assert set(supply.prices) == {"m/a", "m/b"}
    assert count_starts([RECORD, shorter], 3) == [0.0, 1 * HOUR, 2 * HOUR], "what both of them cover"


def test_in_step_are_instances_of_one_zone_and_all_move_when_it_loses_one() -> None:
    supply = zones(a=[(0, 4), (0, 9)], b=[(1, 20), (2, 8), (30, 40), (30, 40)])
    assert spans(tuple(supply.together(2))) == [
        ("m/a", 0.0, 4 * HOUR),
        ("m/b", 4 * HOUR, 8 * HOUR),
        ("m/b", 30 * HOUR, 40 * HOUR),
    ], "from hour 8 to 9 each zone holds one: two at once, but not in step"
    assert spans(tuple(supply.together(1)))[:2] == [("m/a", 0.0, 4 * HOUR), ("m/a", 4 * HOUR, 9 * HOUR)]
    assert supply.together(3) == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=14),
    st.integers(1, 4),
)
def test_what_is_together_is_open_all_the_while_and_no_two_overlap(
    drawn: list[tuple[str, int, int]], instances: int
) -> None:
    windows = [Window(f"m/{zone}", float(opens_s), float(opens_s + lasts_s)) for zone, opens_s, lasts_s in drawn]
    supply = Supply(tuple((window,) for window in windows), {}, 2.0)
    taken = supply.together(instances)
    assert all(before.closes_s <= after.opens_s for before, after in pairwise(taken))
    for each in taken:
        for at_s in np.arange(each.opens_s, each.closes_s):
            there = [one for one in windows if one.market == each.market and one.opens_s <= at_s < one.closes_s]
            assert len(there) >= instances
    held_s = [
        at_s
        for at_s in range(100)
        if any(
            sum(one.market == market and one.opens_s <= at_s < one.closes_s for one in windows) >= instances
            for market in ("m/a", "m/b", "m/c")
        )
    ]
    assert sum(each.closes_s - each.opens_s for each in taken) == len(held_s), "none waits while a zone holds them"


def test_a_restart_loses_what_was_not_saved() -> None:
    """100 minutes of work, saved every 20: taken in the 50th, 40 are kept."""
    first = Window("m/a", 0.0, BOOT_S + JOB.save_s + 50 * 60)
    supply = Supply(((first, Window("m/a", 2 * HOUR, math.inf)),), {"m/a": [(0.0, 1.2)]}, 2.0)
    outcome = restarted(JOB, supply, 1, 20 * 60)
    second_s = BOOT_S + JOB.save_s + 60 * 60 + 2 * JOB.save_s
    assert outcome.hours * HOUR == pytest.approx(2 * HOUR + second_s)
    assert (outcome.instances, outcome.taken, outcome.free) == (2, 1, 1), "the first was taken in its first hour"
    assert outcome.dollars == pytest.approx(1.2 * second_s / HOUR)


@given(st.lists(st.tuples(st.floats(10, 9_000), st.floats(0, 9_000)), max_size=12), st.integers(1, 4))
def test_a_restart_never_takes_less_than_its_work(bits: list[tuple[float, float]], instances: int) -> None:
    windows, at_s = [], 0.0
    for lasts_s, gap_s in bits:
        windows.append(Window("m/a", at_s, at_s + lasts_s))
        at_s += lasts_s + gap_s
    place = (*windows, Window("m/a", at_s, math.inf))
    supply = Supply((place,) * instances, {"m/a": [(0.0, 1.0)]}, 2.0)
    outcome = restarted(JOB, supply, instances, 600.0)
    assert outcome.finished
    assert outcome.hours * HOUR >= BOOT_S + JOB.work_s / instances
    assert outcome.instances <= instances * len(place)


def test_gridml_keeps_what_was_trained_before_a_notice() -> None:
    """Two instances, of which one is taken after twenty minutes and comes back an hour later."""
    places = (
        (Window("m/a", 0.0, 1_200.0), Window("m/a", 4_800.0, math.inf)),
        (Window("m/a", 0.0, math.inf),),
    )
    supply = Supply(places, {"m/a": [(0.0, 1.0)]}, 2.0)
    noticed, steady = with_gridml(JOB, supply, 2), with_gridml(JOB, on_demand(2, 1.0, "m/a"), 2, notice=False)
    assert (noticed.taken, noticed.free) == (1, 1)
    assert steady.taken == 0 and steady.hours * HOUR > BOOT_S + JOB.work_s / 2
    alone_s = 1_200.0 - NOTICE_S - BOOT_S  # that the first trained, and all of it counts
    assert noticed.hours * HOUR < BOOT_S + JOB.work_s - alone_s + 120.0
    kept = noticed.dollars * HOUR
    assert kept == pytest.approx(noticed.hours * HOUR + max(0.0, noticed.hours * HOUR - 4_800.0), abs=60.0)


def test_gridml_takes_what_is_open_in_any_zone_at_once() -> None:
    """Two of zone a are taken after twenty minutes, while zone b holds two."""
    a, b = Window("m/east-1a", 0.0, 1_200.0), Window("m/west-2b", 600.0, math.inf)
    prices = {"m/east-1a": [(0.0, 1.0)], "m/west-2b": [(0.0, 1.0)]}
    moved = with_gridml(JOB, Supply(((a,), (b,), (a,), (b,)), prices, 2.0), 2)
    steady = with_gridml(JOB, on_demand(2, 1.0, "m/east-1a"), 2, notice=False)
    assert (moved.instances, moved.taken) == (4, 2)
    assert moved.hours * HOUR == pytest.approx(steady.hours * HOUR + BOOT_S, abs=20.0), (
        "they boot again, and wait for nothing"
    )
    assert 0 < moved.far < moved.pushes / 2, "of two regions, one has most pushes: it is where the master would be"
    assert steady.far == 0 < steady.pushes


def test_on_demand_alone_is_the_work_and_a_boot() -> None:
    assert alone(JOB, 2.0).dollars == pytest.approx(2.0 * (BOOT_S + 6_000) / HOUR)


def test_a_row_tells_how_many_finished() -> None:
    setting, done = SETTINGS[0], [Outcome(2.0, 0.2, 4, 1, 1), Outcome(3.0, 0.1, 6, 2, 0), Outcome(9.0, 0.4, 5, 3, 0)]
    cells = row(setting, GRIDML, [*done, UNFINISHED])
    assert (cells["hours"], cells["from to"], cells["$"], cells["$ from to"]) == (3.0, "2-9", 0.2, "0.1-0.4")
    assert (cells["taken"], cells["finished"]) == (2.0, "3/4")
    assert cells["of on demand"] == pytest.approx(0.2 / alone(setting.job, setting.full).dollars, abs=1e-3)
    none = row(setting, GRIDML, [UNFINISHED])
    assert (none["hours"], none["$"], none["finished"]) == (None, None, "0/1")


def test_gridml_is_cheaper_only_with_its_traffic_between_regions() -> None:
    setting = SETTINGS[-1]  # 100 MB a push
    assert traffic(setting.job, Outcome(20.0, 80.0, pushes=2_000, far=1_000)) == pytest.approx(1_000 * 0.2 * 0.02)
    ours = [Outcome(20.0, 80.0, pushes=2_000, far=1_000), Outcome(20.0, 80.0, pushes=2_000)]
    theirs = [Outcome(21.0, 83.0), Outcome(19.0, 83.0)]
    outcomes = {(setting, GRIDML): ours, (setting, STEP): theirs}
    assert sooner(outcomes, setting) == "ImageNet, p3.2xlarge three zones: sooner 1, cheaper 1 of 2"
    cells = row(setting, GRIDML, ours)
    assert (cells["$"], cells["traffic $"]) == (80.0, 2.0)


def test_the_plot_takes_ways_of_which_some_or_all_never_finished(tmp_path: Path) -> None:
    first, last = SETTINGS[0], SETTINGS[-1]
    outcomes = {
        (first, GRIDML): [Outcome(2.0, 0.2), UNFINISHED],
        (first, STEP): [UNFINISHED],
        (last, GRIDML): [Outcome(23.0, 80.0), Outcome(30.0, 75.0)],
    }
    panels = [panel(setting, outcomes) for setting in (first, last)]
    assert panels[0].taken == {GRIDML: [(2.0, 0.2)], STEP: []} and panels[0].starts == {GRIDML: 2, STEP: 1}
    draw(panels, (STEP, GRIDML), (GRIDML,), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
