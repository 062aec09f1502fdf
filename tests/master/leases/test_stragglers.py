"""What is expected first and last is what sorting would find, and ranges count as if each position was counted."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from master.decisions.leasing import Span
from master.leases.stragglers import FEW, Expected, Overtaken

leases = st.integers(1, 60)
times = st.floats(allow_nan=False, width=16)  # few enough values for some to be equal


@given(st.lists(st.tuples(leases, st.none() | times)), st.frozensets(leases))
def test_the_ends_are_those_of_a_sorted_list(changes: list[tuple[int, float | None]], but: frozenset[int]) -> None:
    expected, plain = Expected(), dict[int, float]()
    for lease, due_s in changes:
        if due_s is None:
            expected.drop(lease)
            plain.pop(lease, None)
        else:
            expected.add(lease, due_s)
            plain[lease] = due_s
    order = [lease for _, lease in sorted((due_s, lease) for lease, due_s in plain.items()) if lease not in but]
    assert len(expected) == len(plain)
    assert expected.ends(but) == list(dict.fromkeys((*order[:FEW], *order[::-1][:FEW])))


def test_a_lease_of_which_nothing_is_known_is_looked_at_next() -> None:
    expected = Expected()
    for lease in range(100):
        expected.add(lease, float(lease))
    expected.add(100)
    assert expected.ends()[0] == 100
    expected.add(100, math.inf)
    assert expected.ends()[FEW] == 100


LENGTH = 40
ranges = st.builds(
    lambda epoch, one, other: Span(epoch, min(one, other), max(one, other)),
    st.integers(0, 1),
    st.integers(0, LENGTH),
    st.integers(0, LENGTH),
)


@given(st.lists(st.tuples(ranges, st.integers(1, 5))), st.lists(ranges), st.booleans())
def test_ranges_count_as_their_positions_do(taken: list[tuple[Span, int]], asked: list[Span], drop: bool) -> None:
    overtaken, plain = Overtaken(), {epoch: [0] * LENGTH for epoch in (0, 1)}
    for span, count in taken:
        overtaken.add(span, count)
        plain[span.epoch][span.start : span.stop] = [count] * span.count
    if drop:
        overtaken.drop(0)
        plain[0] = [0] * LENGTH
    assert {epoch for epoch in plain if any(plain[epoch])} == {*overtaken.epochs}
    for span in asked:
        assert overtaken.times(span) == max(plain[span.epoch][span.start : span.stop], default=0)


def test_what_is_covered_only_partly_is_kept_outside() -> None:
    overtaken = Overtaken()
    overtaken.add(Span(0, 0, 100), 3)
    overtaken.add(Span(0, 40, 60), 1)
    asked = Span(0, 0, 40), Span(0, 40, 60), Span(0, 60, 100), Span(0, 59, 61), Span(0, 100, 200), Span(1, 0, 100)
    assert [overtaken.times(span) for span in asked] == [3, 1, 3, 3, 0, 0]
