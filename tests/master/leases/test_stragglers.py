"""Counts of ranges that were taken from stragglers equal counts of each position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.leases.stealing import TakenRanges
from master.state.spans import Span

LENGTH = 40
ranges = st.builds(
    lambda epoch, one, other: Span(epoch, min(one, other), max(one, other)),
    st.integers(0, 1),
    st.integers(0, LENGTH),
    st.integers(0, LENGTH),
)


@given(st.lists(st.tuples(ranges, st.integers(1, 5))), st.lists(ranges), st.booleans())
def test_ranges_count_as_their_positions_do(taken: list[tuple[Span, int]], spans: list[Span], drop: bool) -> None:
    ranges_taken, plain = TakenRanges(), {epoch: [0] * LENGTH for epoch in (0, 1)}
    for span, count in taken:
        ranges_taken.add(span, count)
        plain[span.epoch][span.start : span.stop] = [count] * span.count
    if drop:
        ranges_taken.drop(0)
        plain[0] = [0] * LENGTH
    assert {epoch for epoch in plain if any(plain[epoch])} == {*ranges_taken.epochs}
    for span in spans:
        assert ranges_taken.times(span) == max(plain[span.epoch][span.start : span.stop], default=0)


def test_what_is_covered_only_partly_is_kept_outside() -> None:
    taken = TakenRanges()
    taken.add(Span(0, 0, 100), 3)
    taken.add(Span(0, 40, 60), 1)
    spans = Span(0, 0, 40), Span(0, 40, 60), Span(0, 60, 100), Span(0, 59, 61), Span(0, 100, 200), Span(1, 0, 100)
    assert [taken.times(span) for span in spans] == [3, 1, 3, 3, 0, 0]
