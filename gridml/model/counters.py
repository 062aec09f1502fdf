"""Counters of few distinct numbers, for stages: functions of a field `gridml.counter(n)`, which counts numbers below n.

A counter keeps the numbers that it holds, their counts, and where each is: rows 0 and 1 have `size` numbers and
counts, in no order, and row 2 has by number its place, from 1 (0: the number is not there). So a topic model looks at
the topics that a document has, and not at all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["draw", "empty", "put", "search", "size", "take", "weigh"]


def empty(counts: Any) -> None:
    """Remove all numbers."""
    last = counts.shape[1] - 1
    for place in range(counts[2, last]):
        counts[2, counts[0, place]] = 0
    counts[2, last] = 0


def size(counts: Any) -> Any:
    """Return how many distinct numbers there are: `counts[0, i]` with `counts[1, i]` for i below it."""
    return counts[2, counts.shape[1] - 1]


def put(counts: Any, number: Any) -> None:
    """Count a number once more."""
    last = counts.shape[1] - 1
    place = counts[2, number] - 1
    if place < 0:
        place = counts[2, last]
        counts[0, place] = number
        counts[1, place] = 0
        counts[2, number] = place + 1
        counts[2, last] = place + 1
    counts[1, place] += 1


def take(counts: Any, number: Any) -> None:
    """Count a number, which is there, once less."""
    last = counts.shape[1] - 1
    place = counts[2, number] - 1
    counts[1, place] -= 1
    if counts[1, place] == 0:
        end = counts[2, last] - 1
        counts[0, place] = counts[0, end]
        counts[1, place] = counts[1, end]
        counts[2, counts[0, place]] = place + 1
        counts[2, number] = 0
        counts[2, last] = end


def weigh(counts: Any, weights: Any, parts: Any, number: Any, weight: Any) -> Any:
    """Write into `parts`, which has the dtype of `weights`, count times weight of each number that there is. The weight
    is `weights[number]`, and `weight` for the one given. Return the sum: 0 without numbers. Counts below 2^24 are
    exact."""
    total = 0.0 * weights[0]
    for place in range(size(counts)):
        # Numbers are not negative. numba need not test for it if their type says so, which takes 6% of a draw.
        part = np.float32(counts[1, place]) * weights[np.uint32(counts[0, place])]
        total += part
        parts[place] = part
    place = counts[2, number] - 1
    if place >= 0:
        total -= parts[place]
        parts[place] = np.float32(counts[1, place]) * weight
        total += parts[place]
    return total


def draw(counts: Any, parts: Any, x: Any) -> Any:
    """Return the number at which the running sum of the `parts` that `weigh` wrote first exceeds x: one drawn in
    proportion to count times weight, if x is uniform from 0 to their sum."""
    place, last = 0, size(counts) - 1
    while place < last and x >= parts[place]:
        x -= parts[place]
        place += 1
    return counts[0, place]


def search(sums: Any, count: Any, x: Any) -> Any:
    """Return the first place below `count` whose sum is above x; the last if none is. `sums` do not decrease."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if sums[middle] > x:
            high = middle
        else:
            low = middle + 1
    return low
