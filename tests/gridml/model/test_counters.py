"""A counter holds what was put in and not taken, whatever the order."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml import counters

MANY = 6


@given(st.lists(st.tuples(st.booleans(), st.integers(0, MANY - 1)), max_size=60))
def test_it_counts_as_a_counter_of_python(steps: list[tuple[bool, int]]) -> None:
    counts, expected = np.zeros((3, MANY + 1), np.int32), Counter[int]()
    for puts, number in steps:
        if puts:
            counters.put(counts, number)
            expected[number] += 1
        elif expected[number]:
            counters.take(counts, number)
            expected[number] -= 1
        held = {int(counts[0, i]): int(counts[1, i]) for i in range(counters.size(counts))}
        assert held == +expected
    counters.empty(counts)
    assert counters.size(counts) == 0
    assert not counts[2].any()


@given(st.lists(st.integers(0, MANY - 1), max_size=30), st.floats(0, 0.999))
def test_a_number_is_drawn_in_proportion_to_count_times_weight(numbers: list[int], share: float) -> None:
    counts, parts = np.zeros((3, MANY + 1), np.int32), np.zeros(MANY)
    weights = np.arange(1.0, MANY + 1)
    for number in numbers:
        counters.put(counts, number)
    total = counters.weigh(counts, weights, parts, 3, 0.5)
    weights[3] = 0.5
    assert total == sum(weights[number] for number in numbers)
    if numbers:
        order = [int(counts[0, i]) for i in range(counters.size(counts))]
        each = [numbers.count(number) * weights[number] for number in order]
        assert parts[: len(each)].tolist() == each
        at = int(np.searchsorted(np.cumsum(each), share * total, "right"))
        assert counters.draw(counts, parts, share * total) == order[at]


@given(st.lists(st.integers(0, 9), min_size=1), st.floats(-1, 100))
def test_search_finds_the_first_sum_above(steps: list[int], x: float) -> None:
    sums = np.cumsum(steps)
    found = counters.search(sums, len(sums), x)
    above = np.flatnonzero(sums > x)
    assert found == (above[0] if len(above) else len(sums) - 1)
