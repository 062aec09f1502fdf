"""The part of a worker's next lease, and its home part."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from master.leases.affinity import PartFacts, helper_size, rank_parts, settles, spans_by_part, why
from master.leases.policy import MIN_CHUNK_BATCHES
from master.state.spans import Span


@st.composite
def facts(draw: st.DrawFn) -> PartFacts:
    parts = draw(st.integers(1, 8))

    def numbers(most: int) -> list[int]:
        return draw(st.lists(st.integers(0, most), min_size=parts, max_size=parts))

    return PartFacts(draw(st.none() | st.integers(0, parts - 1)), numbers(3), numbers(1000), numbers(10**6))


@given(facts())
def test_every_part_is_ranked_once_and_the_own_one_first(given_facts: PartFacts) -> None:
    order = rank_parts(given_facts)
    assert sorted(order) == list(range(len(given_facts.others)))
    if given_facts.own is not None:
        assert order[0] == given_facts.own
    for part in order:
        assert f"part {part}" in why(given_facts, part)


@given(facts())
def test_a_new_worker_goes_to_a_free_part_or_to_that_with_most_work_per_worker(given_facts: PartFacts) -> None:
    newcomer = replace(given_facts, own=None)
    order = [part for part in rank_parts(newcomer) if newcomer.left[part]]
    assert rank_parts(newcomer)[: len(order)] == order, "what is done comes last"
    alone = [newcomer.others[part] == 0 for part in order]
    assert alone == sorted(alone, reverse=True)
    for free in (True, False):
        each = [newcomer.left[p] / (newcomer.others[p] + 1) for p in order if (newcomer.others[p] == 0) is free]
        assert each == sorted(each, reverse=True)


def test_newcomers_spread_over_parts_of_one_size() -> None:
    others, left = [0, 0, 0], [500, 499, 500]
    taken = []
    for _ in range(4):
        newcomer = PartFacts(None, others, left, [0, 0, 0])
        taken.append(rank_parts(newcomer)[0])
        assert settles(newcomer, taken[-1])
        others[taken[-1]] += 1
        left[taken[-1]] -= 10
    assert taken == [0, 2, 1, 0]


def test_a_dead_workers_part_goes_to_the_next_newcomer() -> None:
    newcomer = PartFacts(None, [1, 0, 1], [100, 80, 150], [0, 0, 0])
    assert rank_parts(newcomer)[0] == 1
    assert settles(newcomer, 1)
    assert not settles(newcomer, 0), "it would only help there"


def test_who_has_nothing_left_goes_to_the_nearest_part_and_first_to_one_without_a_worker() -> None:
    done = PartFacts(0, [0, 1, 0, 1, 0], [0, 9, 9, 9, 9], [99, 80, 10, 90, 20])
    assert rank_parts(done) == [0, 4, 2, 3, 1]
    assert why(done, 0) == "its own part 0"
    assert why(done, 4) == "part 4, which no other worker works on, the nearest to its own"
    assert why(done, 3) == "part 3, which others work on, the nearest to its own"


def test_a_free_part_becomes_a_workers_home_and_others_do_not() -> None:
    done = PartFacts(0, [0, 1, 0], [0, 9, 9], [0, 0, 0])
    assert settles(done, 2)
    assert not settles(done, 1)
    assert not settles(replace(done, left=[5, 9, 9]), 2), "its own part is not done: it comes back"
    assert settles(replace(done, others=[2, 1, 0]), 1), "there it is one of two, and at home one of three"


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 9), st.integers(1, 512))
def test_who_helps_leaves_those_at_home_their_share(size: int, free: int, others: int, batch: int) -> None:
    helped, because = helper_size(size, free, others, batch)
    assert (helped < size) is (because is not None)
    if because is not None:
        assert helped % batch == 0
        assert MIN_CHUNK_BATCHES * batch <= helped < max(MIN_CHUNK_BATCHES * batch, free / (others + 1)) + batch
    assert helper_size(size, free, 0, batch) == (size, None)
    assert helper_size(1000, 999, 1, 10) == (500, "an equal share with the 1 at home there")


def positions(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, count - 1), unique=True, max_size=6).map(sorted)


@given(positions(100), positions(100), st.integers(1, 3), st.data())
def test_spans_come_epoch_by_epoch_and_in_each_part_by_part(
    inner: list[int], more: list[int], epochs: int, data: st.DataObject
) -> None:
    borders = [0, *inner, 100]
    cuts = sorted({0, 100, *inner, *more})
    every = [Span(e, a, b) for e in range(epochs) for a, b in pairwise(cuts)]
    spans = [span for span in every if data.draw(st.booleans())]
    order = data.draw(st.permutations(range(len(borders) - 1)))
    found = list(spans_by_part(spans, borders, order))
    expected = [
        span
        for epoch in range(epochs)
        for part in order
        for span in spans
        if span.epoch == epoch and borders[part] <= span.start < borders[part + 1]
    ]
    assert found == expected
    assert len(found) == len(spans)
