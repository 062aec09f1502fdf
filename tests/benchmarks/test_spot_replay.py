"""Replays of spot markets: what could be had when, and what ways of using it took."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.spot_replay import GRIDML, SETTINGS, row
from benchmarks.spot_supply import NOTICE_S, Supply, Window, Windows, from_counts, from_prices, on_demand
from benchmarks.spot_ways import BOOT_S, UNFINISHED, Job, Outcome, alone, restarted, with_gridml
from chunk_model.price_history import Floats
from chunk_model.trace import Life, Record

HOUR = 3600.0
JOB = Job("small", 3_000, 2, 1.0, push_s=0.1, travel_s=0.1, merge_s=0.01, save_s=5.0)


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
    assert first == ("m/a", 0.0, 4 * HOUR + NOTICE_S), "b got cheaper meanwhile, but nobody moves by himself"
    assert second == ("m/b", 4 * HOUR + NOTICE_S, 5 * HOUR + NOTICE_S)
    assert third == ("m/a", 6 * HOUR, 8 * HOUR + NOTICE_S)
    assert len(supply.places) == 3 and supply.alike
    assert max(price for _, price in supply.prices["m/a"]) == 0.2, "nobody pays more than the cap"


def test_a_notice_comes_before_the_end_and_short_windows_are_passed_over() -> None:
    places = ((Window("m/a", 0.0, 100.0), Window("m/a", 200.0, 1_000.0)),)
    told, untold = (Windows(places, notice) for notice in (True, False))
    life = told.life(0, 0)
    assert life is not None and (life.opens_s, life.closes_s, life.graceful) == (200.0, 1_000.0 - NOTICE_S, True)
    life = untold.life(0, 0)
    assert life is not None and (life.opens_s, life.closes_s, life.graceful) == (0.0, 100.0, False)
    assert told.life(0, 1, 950.0) is None


RECORD = Record((Life("i1", 0.0, 6 * HOUR), Life("i2", 2 * HOUR, 4 * HOUR), Life("i3", 5 * HOUR, None)), 8 * HOUR, "")


def test_counted_instances_share_places_and_the_trace_begins_anew() -> None:
    supply = from_counts("m/a", RECORD, HOUR, 0.5, 2.0)
    assert len(supply.places) == 2 and not supply.alike
    assert [each[1:] for each in spans(tuple(supply.together(2)))[:3]] == [
        (1 * HOUR, 3 * HOUR),
        (4 * HOUR, 5 * HOUR),
        (9 * HOUR, 11 * HOUR),
    ]
    one = supply.together(1)
    assert [(each.opens_s, each.closes_s) for each in one[:2]] == [(0.0, 5 * HOUR), (5 * HOUR, 7 * HOUR)]
    assert all(before.closes_s <= after.opens_s for before, after in pairwise(one))


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
    told, steady = with_gridml(JOB, supply, 2), with_gridml(JOB, on_demand(2, 1.0, "m/a"), 2, notice=False)
    assert (told.taken, told.free) == (1, 1)
    assert steady.taken == 0 and steady.hours * HOUR > BOOT_S + JOB.work_s / 2
    alone_s = 1_200.0 - NOTICE_S - BOOT_S  # that the first trained, and all of it counts
    assert told.hours * HOUR < BOOT_S + JOB.work_s - alone_s + 120.0
    kept = told.dollars * HOUR
    assert kept == pytest.approx(told.hours * HOUR + max(0.0, told.hours * HOUR - 4_800.0), abs=60.0)


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
