"""Chunks cover an epoch, spans are leased oldest first, and a cut leaves the straggler enough work."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.leases import policy
from master.leases.policy import (
    MIN_CHUNK_BATCHES,
    MIN_SAVED_S,
    MIN_SPEEDUP,
    PATIENCE,
    SHARE,
    ChunkFacts,
    Holding,
    choose_span,
    cut,
    expected_s,
    late_s,
    max_vertices,
    reassign,
)
from master.state.spans import Delay, Span

counts = st.integers(1, 10**6)


def sized_for(left: int, workers: int, batch: int, **facts: Any) -> tuple[int, str]:
    return policy.chunk_size(ChunkFacts(left, workers, batch, **facts))


@given(
    counts,
    st.integers(0, 300),
    st.integers(1, 512),
    st.none() | st.integers(1, 10**5),
    counts,
    st.integers(0, 10**5),
    st.booleans(),
)
def test_a_chunk_is_whole_batches_of_what_is_left(
    left: int, workers: int, batch: int, wanted: int | None, per_epoch: int, interval: int, followed: bool
) -> None:
    size, reason = sized_for(
        left, workers, batch, wanted=wanted, per_epoch=per_epoch, interval=interval, followed=followed
    )
    assert 1 <= size <= left
    assert reason
    assert size % batch == 0 or size == left
    assert left - size == 0 or left - size >= batch  # no crumbs
    if wanted is not None:
        assert size < wanted + 2 * batch


@given(counts, st.integers(1, 64), st.integers(1, 128))
def test_an_epoch_is_covered_in_a_bounded_number_of_chunks(per_epoch: int, workers: int, batch: int) -> None:
    left, chunks = per_epoch, 0
    while left:
        left -= sized_for(left, workers, batch, wanted=None, per_epoch=per_epoch)[0]
        chunks += 1
    # Full chunks, then halves of what is left among all: a geometric tail.
    assert chunks <= workers * SHARE + 2 + 2 * workers * (per_epoch.bit_length() + 1)


def test_chunks_shrink_towards_the_end_of_an_epoch() -> None:
    sizes = [sized_for(left, 4, 10, wanted=None, per_epoch=64_000)[0] for left in (64_000, 8_000, 4_000, 1_000, 100)]
    assert sizes == [2_000, 1_000, 500, 130, 40]


def test_one_worker_needs_no_tail() -> None:
    assert sized_for(1_000, 1, 10, wanted=None, per_epoch=8_000) == (1_000, "1/8 of a worker's share of the epoch")


def test_a_chunk_is_worth_its_round_trip() -> None:
    assert sized_for(1_000, 100, 10, wanted=None, per_epoch=1_000)[0] == MIN_CHUNK_BATCHES * 10


def test_the_last_chunks_are_worth_what_passes_around_them() -> None:
    size, reason = sized_for(1_000, 100, 10, wanted=None, per_epoch=100_000, around=75)
    assert size == 80
    assert "the training of 75" in reason
    assert "half of 8,000" in sized_for(8_000, 4, 10, wanted=None, per_epoch=64_000, around=75)[1]
    assert sized_for(1_000, 100, 10, wanted=None, per_epoch=10_000, around=10**6)[0] == MIN_CHUNK_BATCHES * 10
    assert sized_for(100_000, 100, 10, wanted=None, per_epoch=100_000, around=75)[0] == 130


def test_the_last_chunks_are_no_shorter_than_the_merging_of_a_push_of_each_worker() -> None:
    size, reason = sized_for(1_000, 100, 10, wanted=None, per_epoch=100_000, around=75, merging=90)
    assert (size, reason) == (90, "a push of each worker is merged while it trains 90")
    assert sized_for(1_000, 100, 10, wanted=None, per_epoch=100_000, around=95, merging=90)[0] == 100
    assert sized_for(8_000, 4, 10, wanted=None, per_epoch=64_000, merging=90)[0] == 1_000  # long enough anyhow
    assert sized_for(1_000, 100, 10, wanted=None, per_epoch=100_000, merging=10**6)[0] == 130  # never above the usual


def test_a_chunk_is_worth_the_push_that_ends_it() -> None:
    facts: dict[str, Any] = {"wanted": None, "per_epoch": 6_000, "followed": True}
    assert sized_for(6_000, 4, 64, **facts)[0] == 256  # the cost of a push is not known
    assert sized_for(6_000, 4, 64, interval=1_024, **facts) == (1_024, "one push interval")
    assert sized_for(6_000, 4, 64, interval=9_999, **facts) == (1_536, "its share of 6,000 among 4 workers")
    assert sized_for(6_000, 16, 64, interval=1_024, **facts)[0] == 384
    assert sized_for(60_000, 4, 64, **{**facts, "per_epoch": 60_000}, interval=1_024)[0] == 1_920  # as before


@given(st.integers(256, 10**6), st.integers(2, 300), st.floats(0.1, 10.0), st.integers(0, 10**7))
def test_a_chunk_is_at_most_a_share_if_another_epoch_follows(
    per_epoch: int, workers: int, speed: float, interval: int
) -> None:
    facts: dict[str, Any] = {"wanted": None, "per_epoch": per_epoch, "speed": speed, "interval": interval}
    size, _ = sized_for(per_epoch, workers, 8, followed=True, **facts)
    assert size < max(MIN_CHUNK_BATCHES * 8, per_epoch * speed / workers + 1) + 2 * 8


@pytest.mark.parametrize(("idle", "parts"), [(0, 8), (100, 8), (300, 4), (1_000, 2), (3_000, 1)])
def test_chunks_that_are_dear_to_begin_are_larger(idle: int, parts: int) -> None:
    """The size minimises the costs around the chunks of a share plus half a chunk at the end of an epoch."""
    facts: dict[str, Any] = {"left": 10**6, "workers": 2, "batch": 10, "wanted": None, "followed": True}
    size, reason = sized_for(**facts, per_epoch=20_000, idle=idle)
    assert (size, reason) == (10_000 // parts, f"1/{parts} of a worker's share of the epoch")


def test_no_chunk_has_more_bytes_than_it_may() -> None:
    facts: dict[str, Any] = {"per_epoch": 8_000_000, "batch": 64, "left": 8_000_000, "workers": 2}
    for more in ({}, {"sized": (20_000_000, "fitted")}, {"interval": 10**6}, {"around": 10**6}, {"followed": True}):
        size, reason = sized_for(**facts, **more, wanted=None, largest=61_000)
        assert (size, reason) == (60_992, "the limit on the bytes of a chunk")
    assert sized_for(**facts, wanted=None, largest=10)[0] == 64  # at least a batch
    assert sized_for(**facts, wanted=100_000, largest=10)[0] == 100_032  # a requested size has precedence


def test_the_end_of_an_epoch_is_no_end_where_another_follows() -> None:
    sizes = [sized_for(left, 4, 10, wanted=500, per_epoch=64_000, followed=True)[0] for left in (64_000, 1_000, 505)]
    assert sizes == [500, 500, 505]
    assert sized_for(1_000, 4, 10, wanted=None, sized=(500, "fitted"), per_epoch=64_000)[0] == 130


def test_the_size_asked_for_is_used() -> None:
    assert sized_for(10_000, 4, 32, wanted=100, per_epoch=10_000) == (128, "asked for")
    for left in (60_000, 15_000, 10_100):  # with waiting workers, and at the end of an epoch
        assert sized_for(left, 4, 100, wanted=10_000, per_epoch=60_000) == (10_000, "asked for")
    assert sized_for(10_099, 4, 100, wanted=10_000, per_epoch=60_000) == (10_099, "asked for")


spans = st.builds(lambda e, a, n, t: Span(e, a, a + n, t), st.integers(0, 3), counts, counts, st.integers(0, 2))


@given(st.lists(spans), st.integers(0, 3))
def test_the_oldest_epoch_first_and_none_that_must_wait(free: list[Span], newest: int) -> None:
    free = sorted(free, key=lambda s: (s.epoch, s.start))
    chosen, reason = choose_span(free, newest)
    ready = [s for s in free if s.epoch <= newest]
    assert reason
    if chosen is None:
        assert not ready
    else:
        assert chosen in ready
        assert all((chosen.epoch, chosen.start) <= (s.epoch, s.start) for s in ready)


def test_separated_ranges_are_leased_last() -> None:
    isolated, later = Span(0, 0, 5, isolated=True), Span(0, 5, 9)
    assert choose_span([isolated, later], 0)[0] == later
    assert choose_span([isolated, Span(1, 0, 9)], 1)[0] == isolated, "before anything of the next epoch"


def test_why_there_is_none() -> None:
    assert choose_span([], 0) == (None, "everything is leased")
    assert choose_span([Span(1, 0, 9)], 0) == (None, "epoch 1 waits for the one before")


holdings = st.builds(
    lambda i, a, n, r: Holding(i, a, a + n, r), st.integers(1, 99), counts, st.integers(0, 10**5), st.floats(0, 1e4)
)


@given(st.lists(holdings, unique_by=lambda h: h.lease), st.integers(1, 256), st.integers(1, 2000))
def test_a_cut_leaves_two_push_intervals_and_wins_as_much(held: list[Holding], batch: int, every: int) -> None:
    chosen, reason = cut(held, batch, every)
    assert reason
    if chosen is None:
        return
    lease, stop = chosen
    holding = next(h for h in held if h.lease == lease)
    assert stop - holding.upto >= 2 * max(every, batch)
    assert holding.stop - stop > 0
    assert (stop - holding.upto) % batch == 0
    seconds = {h.lease: (h.stop - h.upto) / max(h.rate, 1e-9) for h in held}
    assert seconds[lease] == max(seconds.values())


def test_the_one_that_needs_longest_is_cut_in_half() -> None:
    held = [Holding(1, 0, 1000, 100.0), Holding(2, 500, 1000, 10.0)]
    assert cut(held, 10, 20)[0] == (2, 750)


@pytest.mark.parametrize("held", [[], [Holding(1, 100, 100, 1.0)]])
def test_nothing_to_cut(held: list[Holding]) -> None:
    assert cut(held, 10, 20) == (None, "nothing is leased")


def test_what_is_under_way_stays_with_its_holder() -> None:
    # 3 s to an answer, at 10 vertices a second: up to 60 are trained before the holder knows of the cut.
    held = Holding(1, 0, 119, 10.0, push_every=20, travel_s=3.0)
    assert cut([held], 10, 20)[0] is None
    assert cut([replace(held, stop=120)], 10, 20)[0] == (1, 60)
    assert cut([replace(held, travel_s=0.0)], 10, 20)[0] == (1, 50)


def test_too_little_left_to_cut() -> None:
    chosen, reason = cut([Holding(1, 0, 79, 1.0)], 10, 20)
    assert chosen is None
    assert "79 vertices left" in reason


def test_a_worker_four_times_as_fast_gets_four_times_the_vertices() -> None:
    for left in (64_000, 4_000):  # in the middle of an epoch and at its end
        slow, fast = (sized_for(left, 8, 1, wanted=None, per_epoch=64_000, speed=speed)[0] for speed in (0.5, 2.0))
        assert fast == 4 * slow


def test_the_model_says_how_large_until_the_epoch_ends() -> None:
    assert sized_for(60_000, 4, 10, wanted=None, per_epoch=64_000, sized=(700, "as it says")) == (700, "as it says")
    assert sized_for(60_000, 4, 10, wanted=90, per_epoch=64_000, sized=(700, "as it says")) == (90, "asked for")
    assert sized_for(800, 4, 10, wanted=None, per_epoch=64_000, sized=(700, ""))[0] == 100
    assert sized_for(60_000, 4, 10, wanted=None, per_epoch=64_000, sized=(1, ""))[0] == MIN_CHUNK_BATCHES * 10


rates = st.floats(0.01, 1e4)


@given(counts, rates, st.integers(1, 1000), rates, st.integers(1, 64), st.integers(0, 1000))
def test_a_slow_worker_is_never_given_more_than_the_others_need_for_the_rest(
    uncredited: int, rate: float, others: int, mean: float, batch: int, held: int
) -> None:
    found, reason = max_vertices(uncredited, rate, others, others * mean, batch, held=held)
    assert reason
    if found is None:
        assert rate >= mean * 0.999
        return
    assert found % batch == 0
    if found:
        assert (held + found) / rate <= (uncredited / (others * mean) + found / mean) * (1 + 1e-9)


def test_alone_or_fast_there_is_no_limit() -> None:
    assert max_vertices(100, 1.0, 0, 0.0, 10)[0] is None
    assert max_vertices(100, 0.0, 5, 50.0, 10)[0] is None
    assert max_vertices(100, 10.0, 5, 50.0, 10)[0] is None


def test_a_machine_a_hundred_times_slower_gets_nothing_at_the_end() -> None:
    assert max_vertices(100, 1.0, 10, 1000.0, 10)[0] == 0
    assert max_vertices(100_000, 1.0, 10, 1000.0, 10)[0] == 100


def test_a_cut_leaves_each_worker_its_share_by_speed() -> None:
    held = [Holding(1, 0, 1000, 10.0)]
    assert cut(held, 10, 20, 30.0)[0] == (1, 250)
    assert cut(held, 10, 20, 10.0)[0] == (1, 500)
    assert cut(held, 10, 20, 0.1) == (None, "the idle worker is too slow for a part of lease 1")
    assert cut([Holding(1, 0, 1000, 10.0, before=600)], 10, 20, 10.0)[0] == (1, 200)
    assert cut([Holding(1, 0, 1000, 10.0, push_every=300)], 10, 20, 10.0)[0] is None


def test_a_cut_waits_for_the_whole_of_what_its_holder_has_to_do() -> None:
    held = [Holding(1, 0, 800, 10.0), Holding(2, 800, 1500, 10.0, before=500)]
    assert cut(held, 10, 20)[0] == (2, 900)


def test_a_straggler_is_overtaken() -> None:
    slow = Holding(7, 100, 150, 0.5, since_s=3.0)
    assert reassign([Holding(1, 0, 50, 50.0), slow], 50.0, Delay(1.0)) == (
        7,
        "leased a second time: its worker needs 100 s more for 50 vertices, another 2 s from its last credit",
    )


def test_what_is_nearly_done_is_left_alone() -> None:
    assert reassign([Holding(7, 100, 150, 0.5, at=149)], 50.0, Delay(1.0))[0] is None


def test_who_is_late_is_taken_to_be_late_by_as_much_again() -> None:
    fast = Holding(7, 100, 150, 50.0, since_s=2.0)
    assert reassign([fast], 50.0, Delay(1.0))[0] is None
    stopped = Holding(7, 100, 150, 50.0, since_s=60.0, at=149)
    assert reassign([stopped], 50.0, Delay(1.0))[0] == 7


def test_a_push_under_way_is_not_late() -> None:
    delay = Delay(start_s=1.0, push_s=3.0, travel_s=10.0)
    trained = Holding(7, 100, 150, 50.0, at=150, delay_s=delay.of(50, 50.0))
    for since_s in (5.0, 20.0, 60.0):
        assert reassign([replace(trained, since_s=since_s)], 50.0, delay)[0] is None
    assert reassign([replace(trained, since_s=90.0)], 50.0, delay)[0] == 7


def test_what_a_worker_trains_first_does_not_make_the_rest_late() -> None:
    waiting = Holding(7, 100, 150, 50.0, since_s=8.0, before=100)
    assert reassign([replace(waiting, before=0)], 50.0, Delay(1.0))[0] == 7
    assert reassign([waiting], 50.0, Delay(1.0))[0] is None


def test_overtaking_again_must_pay_twice_as_well() -> None:
    late, delay = Holding(7, 100, 150, 50.0, at=150), Delay(1.0)

    def earliest(times: int) -> int:
        held = replace(late, times_reassigned=times)
        return next(s for s in range(100_000) if reassign([replace(held, since_s=float(s))], 50.0, delay)[0] == 7)

    waits = [earliest(times) for times in range(6)]
    assert all(1.6 * before < after < 2.1 * before for before, after in itertools.pairwise(waits))
    assert reassign([replace(late, since_s=1e9, times_reassigned=100_000)], 50.0, delay)[0] is None


def test_whose_failure_may_end_the_run_keeps_its_lease() -> None:
    """With an endless f, idle workers would steal the range from each other, and be given up for another's lease."""
    stopped = Holding(7, 100, 150, 50.0, since_s=60.0, at=149)
    chosen = [reassign([replace(stopped, failures=failures)], 50.0, Delay(1.0))[0] for failures in range(4)]
    assert chosen == [7, 7, None, None]


def test_invalid_measures_cause_no_reassignment() -> None:
    late = Holding(7, 100, 150, 50.0, since_s=1e6)
    for nonsense in (math.inf, math.nan):
        assert reassign([late], 50.0, Delay(nonsense))[0] is None
        assert reassign([replace(late, delay_s=nonsense, at=150)], 50.0, Delay(nonsense))[0] is None


def test_a_delay_counts_the_pushes_that_can_be_made() -> None:
    delay = Delay(start_s=1.0, copy_s=0.01, push_s=2.0, travel_s=4.0)
    assert delay.of(100, 10.0) == pytest.approx(1.0 + 1.0 + 2.0 + 6.0)
    assert delay.of(100, 10.0, 50) == pytest.approx(1.0 + 1.0 + 3 * 2.0 + 6.0)
    assert delay.of(100, 10.0, 1) == pytest.approx(1.0 + 1.0 + 3.5 * 2.0 + 6.0)  # the next one waits for an answer


def test_who_is_on_schedule_is_expected_at_the_same_time_after_each_credit() -> None:
    granted = Holding(7, 100, 200, 50.0, since_s=0.0, before=50, delay_s=4.0)
    assert expected_s(granted) == -late_s(granted) == 7.0
    ahead_done = replace(granted, since_s=0.0, before=0)  # one second later
    half_done = replace(ahead_done, upto=150)  # and one more
    assert [expected_s(held) for held in (ahead_done, half_done)] == [6.0, 5.0]
    assert expected_s(replace(half_done, since_s=3.0)) == 2.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_who_is_late_is_given_a_little_longer_the_later_it_is(since_s: float, more_s: float) -> None:
    held = Holding(7, 100, 150, 50.0, since_s=since_s, delay_s=4.0)
    expected = 5.0 - since_s if since_s <= 5.0 else PATIENCE * (since_s - 5.0)
    assert expected_s(held) == pytest.approx(expected, abs=1e-9)
    if since_s >= 5.0:
        assert expected_s(replace(held, since_s=since_s + more_s)) >= expected_s(held)


@pytest.mark.parametrize("nonsense", [math.inf, -math.inf, math.nan])
def test_measures_that_make_no_sense_do_not_disturb_the_order(nonsense: float) -> None:
    assert expected_s(Holding(7, 100, 150, 50.0, since_s=9.0, delay_s=nonsense)) == 1.0


@pytest.mark.parametrize("held", [[], [Holding(1, 100, 100, 1.0)]])
def test_nothing_to_overtake(held: list[Holding]) -> None:
    assert reassign(held, 1.0, Delay()) == (None, "nothing is leased")


@given(st.lists(holdings, unique_by=lambda h: h.lease), rates, st.floats(0, 100))
def test_only_what_wins_enough_is_leased_a_second_time(held: list[Holding], rate: float, start_s: float) -> None:
    chosen, reason = reassign(held, rate, Delay(start_s))
    assert reason
    if chosen is None:
        return
    lease = next(h for h in held if h.lease == chosen)
    own_s, another_s = lease.left / max(lease.rate, 1e-9), start_s + lease.left / rate
    assert own_s > MIN_SPEEDUP * another_s
    assert own_s - another_s >= MIN_SAVED_S


def test_equal_rates_that_differ_by_rounding_are_equal() -> None:
    rate = 4.054166666666667
    others = 31
    total = sum([rate] * others)
    for slower in (rate, math.nextafter(rate, 0.0), rate * (1 - 1e-12)):
        assert max_vertices(10**6, slower, others, total, 1)[0] is None


def test_a_slow_worker_is_not_left_idle_for_ever_for_those_who_only_say_that_they_are_fast() -> None:
    assert policy.idle_s(1000, 100.0) == pytest.approx(policy.IDLE_S + policy.IDLE * 10)
    assert policy.idle_s(1000, 1e12) == pytest.approx(policy.IDLE_S)
    assert policy.idle_s(1, 0.0) < 1e10
