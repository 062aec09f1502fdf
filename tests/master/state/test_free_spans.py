"""Free spans of a placed graph: none crosses the border of a part, whatever is leased and freed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from master.state.failures import Failed
from master.state.spans import FreeSpans, Span

COUNT = 40
borders = st.lists(st.integers(1, COUNT - 1), unique=True, min_size=1, max_size=5).map(sorted)


def part_of(position: int, inner: list[int]) -> int:
    return sum(border <= position for border in inner)


@given(borders, st.lists(st.tuples(st.integers(0, 1), st.integers(0, COUNT - 1), st.integers(1, COUNT)), max_size=12))
def test_free_spans_never_cross_a_border(inner: list[int], taken: list[tuple[int, int, int]]) -> None:
    free = FreeSpans([Span(0, 0, COUNT)], lambda _: inner)
    free.join(Span(1, 0, COUNT))
    held: list[Span] = []
    for number, (epoch, position, count) in enumerate(taken):
        span = free.containing(epoch, position)
        if span is not None:
            free.remove(span)
            stop = min(span.start + count, span.stop)
            free.add(replace(span, start=stop))
            held.append(replace(span, stop=stop))
        if held and number % 3 == 2:
            free.join(held.pop(0))
    inside = {(s.epoch, p) for s in free.spans for p in range(s.start, s.stop)}
    outside = {(s.epoch, p) for s in held for p in range(s.start, s.stop)}
    assert len(inside) + len(outside) == 2 * COUNT == len(inside | outside)
    assert free.left() == [Counter(part_of(p, inner) for _, p in inside)[part] for part in range(len(inner) + 1)]
    assert free.spans == sorted(free.spans, key=lambda s: (s.epoch, s.start))
    for span in free.spans:
        assert part_of(span.start, inner) == part_of(span.stop - 1, inner)
    for span in held:
        free.join(span)
    ends = [0, *inner, COUNT]
    whole = [Span(epoch, a, b) for epoch in (0, 1) for a, b in pairwise(ends)]
    assert free.spans == whole, "neighbours are joined, but not across a border"


def test_spans_of_a_ledger_that_cross_a_border_are_cut_and_written() -> None:
    failed = Failed("w1", "m1", 8)
    free = FreeSpans([Span(0, 2, 12, (failed,)), Span(1, 0, 4)], lambda _: [5, 10])
    pieces = [Span(0, 2, 5, (failed,)), Span(0, 5, 10, (failed,)), Span(0, 10, 12)]
    assert free.spans == [*pieces, Span(1, 0, 4)]
    assert free.changes() == ([(0, 2)], pieces)


def test_each_epoch_has_its_own_borders() -> None:
    free = FreeSpans([Span(0, 0, 12)], lambda epoch: [5] if epoch == 0 else [8])
    free.join(Span(1, 0, 12))
    assert free.spans == [Span(0, 0, 5), Span(0, 5, 12), Span(1, 0, 8), Span(1, 8, 12)]
    free.remove(Span(1, 0, 8))
    free.join(Span(1, 0, 8))
    assert free.spans[2:] == [Span(1, 0, 8), Span(1, 8, 12)]
    assert free.left() == [5 + 8, 7 + 4]
