"""Chunk sizes: the times of new fits of lifetimes, the sizes, and their bounds on the push interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Normal
from chunk_model.fit import fit, select
from chunk_model.goodput import Costs
from chunk_model.observations import Observations
from chunk_model.paper import normal_chunk_as_printed
from master.leases.sizing import (
    APART_S,
    FAMILIES,
    FIRST_EXPOSURE_S,
    KindFacts,
    SeenLives,
    Size,
    SizingFacts,
    is_due,
    is_notable,
    size,
    span,
)
from master.store.settings import GAUSSIAN, PAPER

COSTS = Costs(exec_s=0.1, start_s=5.0, push_s=0.1, boot_s=2.0)


def lives(mean_s: float, count: int = 100, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    return Observations(rng.exponential(mean_s, count), np.ones(count, np.bool_))


def facts(*kinds: KindFacts, vertices: int = 10**7, merge_s: float = 0.0, grant_s: float = 0.0) -> SizingFacts:
    return SizingFacts(kinds, vertices, 100, 10, True, merge_s, grant_s)


# --- when


def test_the_first_fit_waits_for_three_deaths_or_ten_minutes() -> None:
    assert is_due(SeenLives(2, 100.0, 5.0), None) == (False, "2 deaths in 100 s of work")
    assert is_due(SeenLives(3, 100.0, 5.0), None)[0]
    assert is_due(SeenLives(0, FIRST_EXPOSURE_S, 5.0), None)[0]
    assert not is_due(SeenLives(0, 0.0, 5.0), None)[0]


@pytest.mark.parametrize(
    ("seen", "due"),
    [
        (SeenLives(100, 1999.0, 1100.0), False),
        (SeenLives(124, 1999.0, 1100.0), False),
        (SeenLives(125, 1999.0, 1100.0), True),
        (SeenLives(100, 2000.0, 1100.0), True),
        (SeenLives(500, 9000.0, 1000.0 + APART_S - 1), False),  # a few times a minute at most
    ],
)
def test_another_fit_waits_until_there_is_more_to_know(seen: SeenLives, due: bool) -> None:
    found, reason = is_due(seen, SeenLives(100, 1000.0, 1000.0))
    assert found is due
    assert reason


def test_what_is_expected_is_not_waited_for() -> None:
    assert is_due(SeenLives(0, 0.1, 5.0), None, expected=True)[0]
    assert not is_due(SeenLives(0, 0.0, 5.0), None, expected=True)[0], "what anything costs is not known yet"
    assert not is_due(SeenLives(1, 2.0, 30.0), SeenLives(0, 1.5, 5.0), expected=True)[0]


@given(st.integers(1, 10**6))
def test_fits_are_few_however_many_die(deaths: int) -> None:
    count, last = 0, None
    at = 0
    while at < deaths:
        at = at + max(1, at // 20)
        seen = SeenLives(at, 1000.0, at * 100.0)
        if is_due(seen, last)[0]:
            count, last = count + 1, seen
    assert count <= 2 + np.log(max(3, deaths)) / np.log(1.25)


# --- which


def test_sizes_follow_lifetimes() -> None:
    short, _ = size(facts(KindFacts("", COSTS, lives(60.0))))
    long, _ = size(facts(KindFacts("", COSTS, lives(3600.0))))
    assert long[""].chunk_s > 2 * short[""].chunk_s
    assert long[""].push_s > 3 * short[""].push_s
    assert "for lives of" in short[""].why


def test_lives_are_as_expected_until_ten_have_ended() -> None:
    alive = Observations(np.array([5.0, 7.0]), np.zeros(2, np.bool_))
    few, many = lives(60.0, 9), lives(60.0, 200)
    usual = {seen: size(facts(KindFacts("", COSTS, law)))[0][""].push_s for seen, law in (("few", few), ("many", many))}
    for seen, law in (("none", alive), ("few", few), ("many", many)):
        asked = replace(facts(KindFacts("", COSTS, law)), expected="exponential(10h)")
        sizes, reason = size(asked)
        assert ("as said before the run" in reason) is (seen != "many")
        if seen == "many":
            assert sizes[""].push_s == usual[seen]
        else:
            assert sizes[""].push_s > 5 * usual["few"]


def test_the_papers_chunk_fills_a_life() -> None:
    asked = replace(facts(KindFacts("", COSTS, lives(600.0))), rule=PAPER, vertices=10**6)
    sizes, reason = size(asked)
    mean_s = select(lives(600.0), FAMILIES).lifetime.mean()
    assert sizes[""].chunk == int(mean_s / COSTS.vertex_s)
    assert sizes[""].push_every <= sizes[""].chunk and "T/(t_c + t_x)" in reason
    assert size(replace(asked, vertices=100))[0][""].chunk == 100, "an epoch has no more"
    assert size(replace(asked, largest=50))[0][""].chunk == 50


def test_the_papers_search_is_for_normal_lives() -> None:
    asked = replace(
        facts(KindFacts("", COSTS, lives(600.0))), rule=GAUSSIAN, vertices=10**6, expected="normal(45m,10m)"
    )
    seen = fit("normal", lives(600.0)).lifetime
    assert isinstance(seen, Normal)
    best = normal_chunk_as_printed(seen.mean_s, seen.sd_s, COSTS, np.arange(1.0, 10_000.0))
    sizes, reason = size(asked)
    assert sizes[""].chunk == pytest.approx(best, rel=0.02), "ten have ended: what was said holds no more"
    few = Observations(np.array([5.0, 7.0]), np.zeros(2, np.bool_))
    sizes, reason = size(replace(asked, kinds=[KindFacts("", COSTS, few)]))
    assert sizes[""].chunk == pytest.approx(
        normal_chunk_as_printed(2700.0, 600.0, COSTS, np.arange(1.0, 10_000.0)), rel=0.02
    )
    assert "search" in reason
    sizes, reason = size(replace(asked, kinds=[KindFacts("", COSTS, few)], expected=None))
    assert not sizes and "need lives that are normal" in reason


def test_a_fast_kind_gets_as_many_more_vertices() -> None:
    slow, fast = COSTS, Costs(exec_s=0.025, start_s=5.0, push_s=0.1, boot_s=2.0)
    few = lives(1800.0, 3)  # too few deaths to distinguish the kinds' lives
    sizes, reason = size(
        facts(KindFacts("", slow, lives(1800.0)), KindFacts("plain", slow, few), KindFacts("fast", fast, few))
    )
    assert sizes["fast"].chunk == pytest.approx(4 * sizes["plain"].chunk, rel=0.1)
    assert sizes["fast"].chunk_s == pytest.approx(sizes["plain"].chunk_s, rel=0.1)
    assert all(f"{name}: " in reason for name in ("all workers", "plain", "fast"))


def test_a_kind_with_enough_deaths_has_lives_of_its_own() -> None:
    sizes, _ = size(facts(KindFacts("", COSTS, lives(1800.0)), KindFacts("frail", COSTS, lives(60.0))))
    assert sizes["frail"].push_s < sizes[""].push_s / 2


def test_without_deaths_so_far() -> None:
    alive = Observations(np.full(20, 100.0), np.zeros(20, np.bool_))
    sizes, reason = size(facts(KindFacts("", COSTS, alive)))
    assert sizes[""].chunk_s > 60
    assert "no worker has died" in reason


def test_the_master_is_not_asked_for_more_than_it_can_do() -> None:
    kind = KindFacts("", Costs(exec_s=0.001, push_s=1e-4), lives(600.0))
    free, _ = size(facts(kind))
    busy, _ = size(facts(kind, merge_s=0.05, grant_s=0.1))
    assert busy[""].push_s >= 100 * 0.05 / 0.5 * 0.99 > free[""].push_s
    assert busy[""].chunk_s >= 100 * 0.1 / 0.25


def test_granting_asks_for_no_more_than_a_chunk_may_have() -> None:
    """Cutting a large chunk takes long, which must not lead to even larger ones."""
    kind = KindFacts("", Costs(exec_s=1e-5, push_s=1e-3), lives(600.0))
    busy = replace(facts(kind, vertices=8_000_000, grant_s=2.5), workers=2)
    assert size(busy)[0][""].chunk <= 8_000_000
    assert size(replace(busy, largest=60_000))[0][""].chunk <= 60_000
    assert size(replace(busy, largest=1))[0][""].chunk == 10  # a batch


def test_pushes_are_not_more_frequent_than_answers() -> None:
    sizes, _ = size(facts(KindFacts("", COSTS, lives(60.0), travel_s=30.0)))
    assert sizes[""].push_s >= 29.0


def test_if_nothing_would_finish_sizes_stay_and_the_user_is_warned() -> None:
    sizes, reason = size(facts(KindFacts("", Costs(exec_s=0.1, start_s=900.0, push_s=1.0), lives(1.0))))
    assert sizes == {}
    assert "sizes stay as they were: no chunk would ever finish" in reason


def test_sizes_that_are_nearly_the_best_stay() -> None:
    kind = KindFacts("", COSTS, lives(600.0))
    first, _ = size(facts(kind))
    assert size(replace(facts(kind), sizes=first)) == ({}, "")
    for factor in (0.02, 50.0):
        others = {"": replace(first[""], push_s=factor * first[""].push_s, chunk_s=50 * first[""].chunk_s)}
        assert size(replace(facts(kind), sizes=others))[0] == first
    assert size(replace(facts(kind, merge_s=0.5), sizes=first))[0][""].push_s > first[""].push_s


# --- changes


def of(chunk_s: float, push_s: float = 1.0) -> Size:
    return Size(chunk_s, push_s, 10, 10, "why")


def test_only_a_notable_change_is_one() -> None:
    assert is_notable({}, {"": of(10)})[0]
    assert not is_notable({"": of(10)}, {"": of(10.9, 1.05)})[0]
    assert is_notable({"": of(10)}, {"": of(11.2)}) == (True, "chunks of all workers change from 10 s to 11.2 s")
    assert is_notable({"": of(10)}, {"": of(10, 0.8)})[0]
    assert not is_notable({"": of(10)}, {})[0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.05, "0.05 s"), (90, "90 s"), (270, "4.5 min"), (7200, "2 h"), (864000, "10 days")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert span(seconds) == text
