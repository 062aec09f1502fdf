"""Chunks cover an epoch, spans are leased oldest first, and a cut leaves the straggler enough to not notice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.decisions.leasing import SHARE, SMALLEST, Holding, Span, choose_span, chunk_size, cut

counts = st.integers(1, 10**6)


@given(counts, st.integers(0, 300), st.integers(1, 512), st.none() | st.integers(1, 10**5), counts)
def test_a_chunk_is_whole_batches_of_what_is_left(
    left: int, workers: int, batch: int, wanted: int | None, per_epoch: int
) -> None:
    size, reason = chunk_size(left, workers, batch, wanted=wanted, per_epoch=per_epoch)
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
        left -= chunk_size(left, workers, batch, wanted=None, per_epoch=per_epoch)[0]
        chunks += 1
    # Full chunks, then halves of what is left among all: a geometric tail.
    assert chunks <= workers * SHARE + 2 + 2 * workers * (per_epoch.bit_length() + 1)


def test_chunks_shrink_towards_the_end_of_an_epoch() -> None:
    sizes = [chunk_size(left, 4, 10, wanted=None, per_epoch=64_000)[0] for left in (64_000, 8_000, 4_000, 1_000, 100)]
    assert sizes == [2_000, 1_000, 500, 130, 40]


def test_one_worker_needs_no_tail() -> None:
    assert chunk_size(1_000, 1, 10, wanted=None, per_epoch=8_000) == (1_000, "1/8 of a worker's share of the epoch")


def test_a_chunk_is_worth_its_round_trip() -> None:
    assert chunk_size(1_000, 100, 10, wanted=None, per_epoch=1_000)[0] == SMALLEST * 10


def test_the_size_asked_for_is_used() -> None:
    assert chunk_size(10_000, 4, 32, wanted=100, per_epoch=10_000) == (128, "asked for")


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


def test_too_little_left_to_cut() -> None:
    chosen, reason = cut([Holding(1, 0, 79, 1.0)], 10, 20)
    assert chosen is None
    assert "79 vertices left" in reason
