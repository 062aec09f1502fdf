"""Lives from the history of spot prices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from chunk_model.prices import EVERY_S, median_over_time, price_lives, read_prices
from chunk_model.traces import TraceError

HEADER = "timestamp,instance_type,zone,product,price_usd_per_h"


def line(hours: float, price: object, zone: str = "a") -> str:
    moment = datetime(2015, 3, 1, tzinfo=UTC) + timedelta(hours=hours)
    return f"{moment},m3.medium,{zone},Linux,{price}"


# Cheap but for the half hour from 2:30, and again at the end of the tenth hour.
CALM = [HEADER, line(0, 0.01), line(2.5, 0.5), line(3, 0.01), line(10, 0.02), line(11, 0.01)]


def hours(lines: list[str], **options: float) -> list[tuple[float, float | None]]:
    lives = price_lives(read_prices(lines, "prices.csv"), "prices.csv", **options).lives  # type: ignore[arg-type]
    return [(a.start_s / EVERY_S, None if a.end_s is None else a.end_s / EVERY_S) for a in lives]


def test_an_instance_lives_until_the_price_exceeds_its_bid() -> None:
    expected = [(0.0, 2.5), (1.0, 2.5), (2.0, 2.5), *((float(h), 10.0) for h in range(3, 10))]
    assert hours(CALM, bid=1.5) == expected  # none starts at 10:00, when it costs too much
    record = price_lives(read_prices(CALM, "prices.csv"), "prices.csv", bid=1.5)
    assert record.end_s == 11 * EVERY_S and record.lives[0].node == "m3.medium/a/Linux#1"


def test_a_price_equal_to_the_bid_is_paid() -> None:
    assert hours(CALM, bid=2)[3:] == [(float(h), None) for h in range(3, 11)]


def test_a_higher_bid_never_shortens_a_life() -> None:
    low, high = dict(hours(CALM, bid=1)), dict(hours(CALM, bid=50))
    assert low.keys() <= high.keys() and all(end is None for end in high.values())


def test_each_market_has_its_own_median_and_all_share_one_clock() -> None:
    lines = [*CALM, line(1, 10.0, "b"), line(4, 16.0, "b"), line(4.5, 10.0, "b")]
    record = price_lives(read_prices(lines, "prices.csv"), "prices.csv", bid=1.5)
    other = [a for a in record.lives if a.node.startswith("m3.medium/b")]
    assert (other[0].start_s, other[0].end_s) == (EVERY_S, 4 * EVERY_S)
    assert [a.start_s for a in record.lives] == sorted(a.start_s for a in record.lives)
    alone = price_lives(read_prices(lines, "prices.csv"), "prices.csv", market="m3.medium/b", bid=1.5)
    assert len(alone.lives) == 3 and alone.lives[0].start_s == 0 and {a.end_s for a in alone.lives} == {3 * EVERY_S}


def test_lines_may_come_newest_first() -> None:
    assert hours([HEADER, *reversed(CALM[1:])]) == hours(CALM)


def test_a_time_without_a_zone_is_utc_and_columns_may_stand_in_any_order() -> None:
    turned = [",".join(reversed(text.replace("+00:00", "").split(","))) for text in CALM]
    assert hours(turned) == hours(CALM)


def test_the_median_counts_time_not_lines() -> None:
    time_s, price = np.array([0.0, 1.0, 2.0, 3.0]), np.array([9.0, 8.0, 7.0, 1.0])
    assert median_over_time(time_s, price, 100.0) == 1.0
    assert median_over_time(time_s, price, 5.5) == 7.0


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "no column timestamp, instance_type"),
        (["timestamp,zone,product,price_usd_per_h"], "line 1: no column instance_type; expected timestamp,"),
        ([HEADER], "has no prices"),
        ([HEADER, line(0, 1), "", line(1, "dear")], "line 4: got"),
        ([HEADER, line(0, "nan")], "line 2: got"),
        ([HEADER, line(0, -1)], "line 2: got"),
        ([HEADER, line(0, 1).rpartition(",")[0]], "line 2: got"),
        ([HEADER, "yesterday,m3.medium,a,Linux,1"], "line 2: got 'yesterday,m3.medium,a,Linux,1', expected such as"),
    ],
)
def test_prices_that_make_no_sense(lines: list[str], says: str) -> None:
    with pytest.raises(TraceError) as caught:
        price_lives(read_prices(lines, "prices.csv"), "prices.csv")
    assert str(caught.value).startswith("prices.csv") and says in str(caught.value)


@pytest.mark.parametrize("bid", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bid_that_makes_no_sense(bid: float) -> None:
    with pytest.raises(TraceError, match="the bid is"):
        price_lives(read_prices(CALM, "prices.csv"), "prices.csv", bid=bid)


def test_a_market_that_is_not_there() -> None:
    with pytest.raises(TraceError, match=r"no market 'c3'; it has m3\.medium/a/Linux"):
        price_lives(read_prices(CALM, "prices.csv"), "prices.csv", market="c3")
