"""Batch sizes and push intervals of several workers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.engine.pace import (
    MAX_BUDGET_FACTOR,
    PaceChoice,
    PaceFacts,
    TypicalCosts,
    batch_size,
    choose_pace,
    next_batch,
    poll_interval_s,
    rate_scale,
)

batches = st.integers(1, 4096)
lives = st.integers(0, 10_000)


def push_every(
    live: int, batch: int, rate: float, push_cost_s: float, budget: float, drift: float = 0.0
) -> tuple[int, str]:
    """Return (push interval, reason) of workers that keep the program's batch."""
    facts = PaceFacts(live, batch, batch, speed=rate, push_s=push_cost_s, budget=budget, drift=drift)
    chosen, reason = choose_pace(facts)
    return chosen.push_every, reason


@given(batches, st.data())
def test_one_worker_uses_the_batch_of_the_program(batch: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(1, batch))
    assert batch_size(batch, least, 1) == batch == batch_size(batch, least, 0)


@given(batches, lives, lives, st.data())
def test_a_batch_stays_in_its_range_and_never_grows_with_workers(
    batch: int, live: int, more: int, data: st.DataObject
) -> None:
    least = data.draw(st.integers(1, batch))
    fewer, many = sorted([live, more])
    assert least <= batch_size(batch, least, many) <= batch_size(batch, least, fewer) <= batch


@pytest.mark.parametrize(("live", "expected"), [(1, 64), (2, 32), (3, 22), (4, 16), (512, 16)])
def test_the_workers_share_a_batch_down_to_a_quarter(live: int, expected: int) -> None:
    assert batch_size(64, 8, live) == expected


def test_the_smallest_batch_of_a_program_is_kept() -> None:
    assert batch_size(64, 24, 100) == 24


def test_the_rate_falls_with_the_root_of_the_batch() -> None:
    assert rate_scale(1.0) == 1.0  # to the bit: one worker is plain SGD
    assert rate_scale(0.25) == 0.5


@pytest.mark.parametrize(("live", "expected"), [(1, 512), (4, 256), (16, 128), (64, 64), (256, 64)])
def test_pushes_come_as_often_as_the_merge_rule_wants_where_they_are_cheap(live: int, expected: int) -> None:
    assert push_every(live, 64, rate=1000.0, push_cost_s=0.0, budget=0.03)[0] == expected


def test_edges_of_stages_count_as_vertices() -> None:
    assert choose_pace(PaceFacts(16, 4, weight=8.0))[0].push_every == 16
    every, reason = choose_pace(PaceFacts(64, 4, weight=96.0))
    assert (every.push_every, reason) == (1, "512/sqrt(64) edges of 96 a vertex, as the merge rule wants")


@given(lives, batches, st.data())
def test_one_decision_gives_batch_rate_and_interval(live: int, batch: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(1, batch))
    chosen, _ = choose_pace(PaceFacts(live, batch, least))
    assert chosen.batch == batch_size(batch, least, live)
    assert chosen.rate == rate_scale(chosen.batch / batch)
    assert chosen.push_every % chosen.batch == 0


def test_a_program_may_keep_its_rates() -> None:
    assert choose_pace(PaceFacts(4, 64))[0][:2] == (16, 0.5)
    assert choose_pace(PaceFacts(4, 64, keeps_rate=True))[0][:2] == (16, 1.0)


def test_the_interval_that_is_asked_for_is_used() -> None:
    facts = PaceFacts(4, 64, speed=1000.0, push_s=0.002, merging_s=10.0, max_interval_s=0.01, asked=7)
    assert choose_pace(facts) == (PaceChoice(16, 0.5, 7), "asked for")
    assert choose_pace(facts._replace(typical=COSTS)) == choose_pace(facts)


COSTS = TypicalCosts(speed=300.0, push_s=0.007, travel_s=0.01)  # a push costs 2.1 vertices
CHEAP = PaceFacts(4, 64, speed=300.0, push_s=0.007, typical=COSTS)


def with_costs(facts: PaceFacts, **change: Any) -> PaceFacts:
    """Return facts with other typical costs, and other facts."""
    costs = {name: change.pop(name) for name in COSTS._fields if name in change}
    return facts._replace(typical=COSTS._replace(**costs), **change)


@pytest.mark.parametrize(
    ("change", "batch"),
    [
        ({}, 16),
        ({"live": 16}, 5),  # a 16th of the batch has 4 vertices, and a push may take half of the time of 5
        ({"live": 500}, 5),
        ({"push_s": 0.05}, 30),
        ({"push_s": 0.1}, 32),  # 30 vertices, less than half of the time
        ({"min_batch": 20}, 20),
        ({"travel_s": 0.08}, 24),
        ({"merging_s": 0.08}, 24),
        ({"travel_s": 0.2}, 32),  # the worker trains for a little more than half of the time
    ],
)
def test_where_pushes_are_cheap_the_steps_of_parts_of_a_batch_are_added(change: dict[str, Any], batch: int) -> None:
    facts = with_costs(CHEAP, **change)
    chosen, reason = choose_pace(facts)
    rate = min(batch / 64, 2 / (facts.live - 1))
    assert chosen == PaceChoice(batch, pytest.approx(rate), batch, batch, facts.live - 1)
    assert reason.startswith("steps are added: a push costs as much time as ")


@pytest.mark.parametrize(
    "change",
    [
        {"keeps_rate": True},
        {"live": 1},
        {"asked": 64},
        {"push_s": 0.11},  # 33 vertices: pushes would take more than half of the time
        {"travel_s": 0.22},  # the time of 66
        {"live": 16, "push_s": 0.0853},  # 25.6 vertices: more than three quarters of the time
        {"min_batch": 64},
        {"batch": 1},
        {"max_interval_s": 0.01},
    ],
)
def test_otherwise_replicas_are_averaged(change: dict[str, Any]) -> None:
    facts = with_costs(CHEAP, **change)
    chosen, _ = choose_pace(facts)
    assert not chosen.added
    assert chosen.batch == batch_size(facts.batch, facts.min_batch, facts.live)
    assert choose_pace(CHEAP._replace(typical=None))[0] == PaceChoice(16, 0.5, 256)


def test_a_first_push_after_one_batch_measures_the_costs() -> None:
    chosen, reason = choose_pace(with_costs(CHEAP, speed=0.0)._replace(speed=0.0))
    assert chosen == PaceChoice(16, 0.5, 16)
    assert reason == "one batch: the costs of a push are not measured yet"


def test_parts_are_as_large_as_workers_are_fast_so_that_all_take_equally_long() -> None:
    """A GPU beside three CPUs, and a worker that is five times slower than the typical one."""
    fast, slow = choose_pace(CHEAP._replace(speed=900.0))[0], choose_pace(CHEAP._replace(speed=60.0))[0]
    assert fast == PaceChoice(48, pytest.approx(0.75), 48, 16, pytest.approx(1 / 3))
    assert slow == PaceChoice(3, pytest.approx(3 / 64), 3, 16, pytest.approx(61 / 3))
    assert choose_pace(CHEAP._replace(speed=1e6))[0].batch == 64
    assert choose_pace(CHEAP._replace(speed=1e-3, min_batch=2))[0].batch == 2


@given(
    st.integers(2, 1000),
    batches,
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(1, 1e5),
    st.lists(st.floats(0.01, 100), min_size=2, max_size=5),
)
def test_all_workers_of_a_run_are_averaged_or_added_whatever_each_of_them_costs(
    live: int, batch: int, push_s: float, travel_s: float, speed: float, ratios: list[float]
) -> None:
    facts = PaceFacts(live, batch, typical=TypicalCosts(speed, push_s, travel_s))
    chosen = [choose_pace(facts._replace(speed=ratio * speed, push_s=ratio * push_s))[0] for ratio in ratios]
    assert len({each.added for each in chosen}) == 1
    for each in chosen:
        if each.added:
            assert each.rate <= each.batch / batch <= 1.0
            assert each.others * each.rate <= 2.0 + 1e-9
            assert each.others * each.batch <= max(0, live * each.added - each.batch) + 1e-6


@given(
    st.integers(1, 1000),
    st.none() | st.floats(1e-3, 1e4),
    st.floats(0, 1e4),
    st.integers(1, 64),
    st.integers(1, 10_000),
    st.floats(0, 0.1),
)
def test_only_the_master_makes_an_interval_longer_than_the_rule_wants(
    cost: int, longest_s: float | None, speed: float, batch: int, live: int, merge_s: float
) -> None:
    free = PaceFacts(live, batch, batch, speed=speed, push_s=cost / 1000.0, budget=0.03)
    ruled = choose_pace(free)[0].push_every
    longest = math.inf if longest_s is None else longest_s
    facts = free._replace(merging_s=live * merge_s, max_interval_s=longest)
    (_, _, every, *_), reason = choose_pace(facts)
    assert reason
    merged = live * merge_s * speed
    assert batch <= every <= max(ruled, merged + batch)
    assert every >= merged - batch
    assert every % batch == 0
    if every < ruled:
        assert every >= min(longest, live * merge_s) * speed - batch


def test_what_the_master_cannot_merge_is_not_pushed_whatever_the_rule_wants() -> None:
    facts = PaceFacts(2600, 1, speed=0.16, merging_s=728.0)
    (_, _, every, *_), reason = choose_pace(facts)
    assert every == round(728 * 0.16) and reason == "116 vertices: the master merges no faster"
    assert choose_pace(facts._replace(max_interval_s=60.0))[0].push_every == every
    assert choose_pace(facts._replace(speed=0.0))[0].push_every == 10


def test_short_lives_push_oftener_than_the_rule() -> None:
    facts = PaceFacts(1, 10, speed=100.0)
    assert choose_pace(facts._replace(max_interval_s=2.0))[0].push_every == 200
    assert choose_pace(facts._replace(max_interval_s=60.0))[0].push_every == 520


@given(
    st.integers(2, 1000),
    batches,
    st.floats(1, 1e4),
    st.floats(0, 10),
    st.floats(0.001, 0.5),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_the_more_rows_drift_the_oftener_workers_push_as_far_as_the_merge_rule_wants(
    live: int, batch: int, rate: float, cost_s: float, budget: float, drifts: list[float]
) -> None:
    less, more = sorted(drifts)
    least = push_every(live, batch, 0.0, 0.0, budget)[0]
    still, some, much = (push_every(live, batch, rate, cost_s, budget, drift)[0] for drift in (0.0, less, more))
    assert least <= much <= some <= still


@pytest.mark.parametrize("times", [0.5, 0.8, 1.25, 2.0])
def test_another_interval_loses_more_to_pushes_and_drift_together(times: float) -> None:
    drift, live, rate, cost_s = 2e-5, 9, 1000.0, 0.1
    every, reason = push_every(live, 1, rate, cost_s, 0.03, drift)

    def lost(vertices: float) -> float:
        return rate * cost_s / vertices + drift * live * vertices

    assert lost(every) < lost(times * every)
    assert reason == "a push costs 100.0 ms, and rows of 9 workers drift apart"


def test_pushes_take_at_most_a_multiple_of_the_budget() -> None:
    every, _ = push_every(64, 1, rate=1000.0, push_cost_s=1.0, budget=0.03, drift=10.0)
    assert every == int(1000 / 0.03 / MAX_BUDGET_FACTOR)


def test_a_single_worker_does_not_drift() -> None:
    assert push_every(1, 64, 1000.0, 0.1, 0.03, drift=0.1) == push_every(1, 64, 1000.0, 0.1, 0.03)


def cut(left: int, size: int, least: int, *, alike: bool) -> list[int]:
    """The batches of a lease."""
    sizes = []
    while left:
        sizes.append(next_batch(left, size, least, alike=alike))
        left -= sizes[-1]
    return sizes


@given(st.integers(1, 10_000), batches)
def test_a_lease_is_cut_into_batches_of_nearly_one_size(left: int, size: int) -> None:
    """No batch of a lease is much smaller than the others. Regression: the last one had a single vertex."""
    sizes = cut(left, size, 1, alike=True)
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-left // size)  # no more batches than necessary


@given(st.integers(1, 10_000), batches)
def test_the_batches_of_one_worker_are_those_of_a_loop(left: int, size: int) -> None:
    assert cut(left, size, 1, alike=False) == [min(size, left - at) for at in range(0, left, size)]


@given(st.integers(1, 10_000), batches, st.data(), st.booleans())
def test_no_batch_has_fewer_than_asked_for(left: int, size: int, data: st.DataObject, alike: bool) -> None:
    least = data.draw(st.integers(1, size))
    sizes = cut(left, size, least, alike=alike)
    assert sum(sizes) == left and min(sizes) >= min(least, left)
    assert max(sizes) <= (size if 2 * least <= size + 1 else max(size, 2 * least - 1))


def test_dear_pushes_come_less_often_and_the_reason_says_so() -> None:
    every, reason = push_every(4, 64, rate=1000.0, push_cost_s=0.3, budget=0.03)
    assert every == 10_048  # 10,000 vertices in the 10 s of which a push may take 3%, in whole batches
    assert "300.0 ms" in reason
    assert "3%" in reason


@given(lives, batches, st.floats(0, 1e6), st.floats(0, 100), st.floats(0.001, 1))
def test_an_interval_is_whole_batches_and_within_the_budget(
    live: int, batch: int, rate: float, cost: float, budget: float
) -> None:
    every, reason = push_every(live, batch, rate, cost, budget)
    assert every >= batch
    assert every % batch == 0
    assert every + 1 >= 512 / math.sqrt(max(1, live))  # one vertex of rounding
    assert every + 1 >= rate * cost / budget
    assert reason


@given(st.integers(0, 10**6))
def test_the_more_wait_the_more_rarely_each_asks(waiting: int) -> None:
    seconds = poll_interval_s(waiting)
    assert 0.1 <= seconds <= 5.0
    assert waiting / seconds <= 500.001 or seconds == 5.0
    assert poll_interval_s(waiting + 1) >= seconds
