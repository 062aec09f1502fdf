"""Lives inferred from traces that only count instances."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.prices import parse_json
from chunk_model.traces import MAX_COUNT, Life, TraceError, count_lives, parse_counts


def ticks(data: Any, gap: Any = 60) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap}, "data": data})


def within(
    lives: list[Life] | tuple[Life, ...], *bounds: tuple[float, float, float, float] | tuple[float, float]
) -> None:
    """Each life starts between its two bounds, and ends between those of its end, if it has any."""
    assert len(lives) == len(bounds)
    for life, bound in zip(lives, bounds, strict=True):
        assert bound[0] < life.start_s <= bound[1], life
        match bound:
            case (_, _):
                assert life.end_s is None
            case (_, _, after, until):
                assert life.end_s is not None and after < life.end_s <= until, life


def test_an_instance_that_comes_and_goes() -> None:
    record = parse_json(ticks([0, 1, 1, 1, 0, 0, 1]), "zone.json")
    within(record.lives, (0, 60, 180, 240), (300, 360))
    assert record.end_s == 360.0 and "every 60 s" in record.contents and record.older == 0


def test_one_that_was_there_when_the_record_began_counts_from_then() -> None:
    record = parse_json(ticks([1, 1, 2, 0], 0.5), "zone.json")
    within(record.lives, (-1, 0, 1.0, 1.5), (0.5, 1.0, 1.0, 1.5))
    assert record.lives[0].start_s == 0 and record.older == 1


def test_instances_that_come_or_are_taken_together_do_so_at_one_instant() -> None:
    lives = parse_json(ticks([4, 4, 0, 3], 300), "zone.json").lives
    within(lives, *[(-1.0, 0.0, 300.0, 600.0)] * 4, *[(600.0, 900.0)] * 3)
    assert len({life.end_s for life in lives[:4]}) == 1 and len({life.start_s for life in lives[4:]}) == 1
    assert len({life.node for life in lives}) == 7


def test_lives_are_no_multiples_of_the_gap_but_are_right_on_average() -> None:
    lives = parse_json(ticks([0, 1, 1] * 4000 + [0], 60), "zone.json").lives
    lengths = np.array([life.end_s - life.start_s for life in lives if life.end_s is not None])
    assert len(lengths) == 4000 and lengths.mean() == pytest.approx(120, rel=0.02)
    # The sum of two even draws, 60 s wide.
    assert lengths.std() == pytest.approx(60 / 6**0.5, rel=0.05) and 60 < lengths.min() < lengths.max() < 180


def test_who_leaves_is_drawn_from_all_that_are_there_and_always_the_same() -> None:
    counts = [2, 1, 0]
    ends = [count_lives([0.0, 10.0, 20.0], counts, seed)[0].end_s for seed in range(400)]
    assert 160 <= sum(end is not None and end <= 10 for end in ends) <= 240
    text = ticks([5, 3, 4, 2, 5, 0, 2])
    assert parse_json(text, "a") == parse_json(text, "b")


def test_where_no_age_kills_a_draw_shows_no_wear() -> None:
    """A pool of constant size in which one leaves each minute, drawn at random: lives are geometric, with mean = size.

    Their standard deviation is then nearly their mean; ending the oldest first would make it 0.
    """
    size, steps = 20, 20_000
    counts = np.full(2 * steps, size)
    counts[1::2] = size - 1
    lives = count_lives(np.arange(2.0 * steps).tolist(), counts.tolist())
    lengths = np.array([life.end_s - life.start_s for life in lives if life.end_s is not None and life.start_s > 0])
    assert len(lengths) > 19_900
    assert lengths.mean() == pytest.approx(2 * size, rel=0.05) and lengths.std() == pytest.approx(2 * size, rel=0.05)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 5))
def test_lives_add_up_to_the_counts(counts: list[int], seed: int) -> None:
    times = [10.0 * i for i in range(len(counts))]
    lives = count_lives(times, counts, seed)
    for now, count in zip(times, counts, strict=True):
        assert count == sum(a.start_s <= now and (a.end_s is None or a.end_s > now) for a in lives)
    assert [a.start_s for a in lives] == sorted(a.start_s for a in lives)
    assert all(a.end_s is None or a.end_s > a.start_s for a in lives)
    assert len(lives) == counts[0] + sum(max(0, b - a) for a, b in pairwise(counts))


def test_lines_of_date_time_and_count() -> None:
    lines = ["2021-12-10, 23:59:30, 2", "", "2021-12-11, 00:00:30, 2", "2021-12-11,00:01:30,1"]
    record = parse_counts(lines, "gcp.txt")
    taken, stays = sorted(record.lives, key=lambda life: life.end_s is None)
    within([taken, stays], (-1, 0, 60, 120), (-1, 0))
    assert record.end_s == 120.0


def test_a_line_that_goes_back_takes_back_what_was_said_of_later() -> None:
    lines = ["2021-12-10, 13:00:00, 3", "2021-12-10, 13:01:00, 3", "2021-12-10, 13:02:00, 0", "2021-12-10, 13:01:00, 2"]
    record = parse_counts(lines, "gcp.txt")
    taken, *stay = sorted(record.lives, key=lambda life: life.end_s is None)
    within([taken, *stay], (-1, 0, 0, 60), (-1, 0), (-1, 0))
    assert record.end_s == 60.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: not JSON"),
        ("{}", "gap_seconds or data is missing, or empty"),
        ("[1, 2]", "gap_seconds or data is missing, or empty"),
        (ticks([]), "gap_seconds or data is missing, or empty"),
        (ticks([1], "60"), "gap_seconds or data is missing, or empty"),
        (ticks([1], 0), "gap_seconds is 0"),
        (ticks([1], True), "gap_seconds is True"),
        (ticks([1], -60), "gap_seconds is -60"),
        (ticks([1], float("nan")), "gap_seconds is nan"),
        (ticks([1], int("9" * 400)), "gap_seconds is 999"),  # regression: too large for a float
        (ticks([1], 1e308), "gap_seconds is 1e+308"),
        (ticks([1, 0, -1]), "data[2]: got -1"),
        (ticks([1, 0.5]), "data[1]: got 0.5"),
        (ticks([True]), "data[0]: got True"),
        (ticks([None]), "data[0]: got None"),
        (ticks([MAX_COUNT + 1]), "data[0]: got 1000001"),
    ],
)
def test_ticks_that_make_no_sense(text: str, says: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_json(text, "zone.json")
    assert str(caught.value).startswith("zone.json") and says in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "has no counts"),
        ([""], "has no counts"),
        (["2021-12-10, 13:00:00, 3", "", "2021-12-10, 13:01:00"], "line 3: got '2021-12-10, 13:01:00'"),
        (["2021-12-10, 13:00:00, -3"], "line 1: got"),
        (["2021-12-32, 13:00:00, 3"], "line 1: got '2021-12-32, 13:00:00, 3', which is no moment"),
        (["2021-12-10, 13:00:00, 99999999999"], "line 1: got"),
        (["2021-12-10, 13:00:00, " + "9" * 5_000], "line 1: got"),  # regression: more digits than int() takes
    ],
)
def test_counts_that_make_no_sense(lines: list[str], says: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_counts(lines, "gcp.txt")
    assert str(caught.value).startswith("gcp.txt") and says in str(caught.value)
