"""Rows joined in pairs that share most of their columns: a smaller graph whose parts are parts of the larger one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gridml.placement.base import Counts, Parts
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled

_APART = 0x9E3779B97F4A7C15 >> 1  # what numbers of rows in two parts differ by
HEAVY = 100  # rows of a column, above which no mate is looked for in it: it says little, and there are many


def coarsen(
    graph: Bipartite, sizes: Parts | Counts, largest: int, rng: np.random.Generator, within: Parts | None = None
) -> tuple[Bipartite, Parts | Counts, Parts]:
    """Return the smaller graph, its rows' sizes, and which row of it each row became, int32 (rows,).

    A row of it touches what both of the pair did, and is at most `largest` in size. Rows that find no mate, as they
    share only columns of many rows, or because who they share them with is taken, are joined with one that touches the
    same; those left then are sorted by the least of numbers drawn for their columns: those that follow each other and
    agree in the first of two draws are joined. With parts `within` that they stay, int32 (rows,), no pair is of two.
    """
    order = rng.permutation(graph.rows).astype(np.int32)
    by_column = graph.transposed
    columns_of, rows_of = (graph.offsets, graph.neighbours), (by_column.offsets, by_column.neighbours)
    mate = _mates(*columns_of, *rows_of, graph.column_weights, sizes, order, largest, HEAVY, within)
    drawn = rng.integers(1, 2**62, graph.columns)
    if graph.column_weights is not None:
        drawn[graph.column_weights == 0] = 0
    alike = _alike(*columns_of, drawn)
    if within is not None:
        alike += within * np.int64(_APART)
    single = np.flatnonzero(mate < 0)
    _join_neighbours(single[np.argsort(alike[single], kind="stable")], alike, sizes, largest, mate)
    first, second = (_least(*columns_of, graph.column_weights, rng.permutation(graph.columns)) for _ in range(2))
    left = np.flatnonzero((mate < 0) & (first >= 0))
    if within is not None:
        first = np.where(first < 0, -1, first + within.astype(np.int64) * graph.columns)
    _join_neighbours(left[np.lexsort((second[left], first[left]))], first, sizes, largest, mate)
    became, count = _numbers(mate)
    members = np.argsort(became, kind="stable").astype(np.int32)
    offsets = np.zeros(count + 1, np.int64)
    neighbours = np.empty(graph.edges, np.int32)
    last = np.full(graph.columns, -1, np.int32)
    used = _union(graph.offsets, graph.neighbours, members, became, last, offsets, neighbours)
    joined = np.bincount(became, sizes, minlength=count).astype(np.int64)
    smaller = Bipartite(offsets, neighbours[:used].copy(), graph.columns, None, graph.column_weights)
    if graph.row_weights is None:
        return smaller, joined.astype(np.int32), became
    return replace(smaller, row_weights=joined), joined, became


@compiled
def _mates(
    offsets: Counts,
    neighbours: Parts,
    column_offsets: Counts,
    rows_of: Parts,
    weights: Counts | None,
    sizes: Parts | Counts,
    order: Parts,
    largest: int,
    heavy: int,
    within: Parts | None,
) -> Parts:
    """Return the mate of each row, int32 (rows,), or −1: the free row `within` the same part that it shares most with,
    as a column of d rows counts its weight/(d − 1), for the columns that the other one has and the rows that it stands
    for."""
    count = len(sizes)
    score = np.zeros(count, np.float32)
    seen = np.empty(count, np.int32)
    mate = np.full(count, -1, np.int32)
    for row in order:
        if mate[row] >= 0:
            continue
        met = 0
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            degree = column_offsets[column + 1] - column_offsets[column]
            if degree < 2 or degree > heavy:
                continue
            unit = 1 if weights is None else weights[column]
            if unit == 0:
                continue
            share = np.float32(unit / (degree - 1))
            for at in range(column_offsets[column], column_offsets[column + 1]):
                other = rows_of[at]
                if within is not None and within[other] != within[row]:
                    continue
                if mate[other] < 0 and other != row:
                    if score[other] == 0:
                        seen[met] = other
                        met += 1
                    score[other] += share
        best, most = -1, 0.0
        for at in range(met):
            other = seen[at]
            worth = score[other] / (max(1, sizes[other]) * (offsets[other + 1] - offsets[other])) ** 0.5
            score[other] = 0
            if worth > most and sizes[row] + sizes[other] <= largest:
                best, most = other, worth
        if best >= 0:
            mate[row], mate[best] = best, row
    return mate


@compiled
def _least(offsets: Counts, neighbours: Parts, weights: Counts | None, drawn: Counts) -> Counts:
    """Return for each row the least number drawn for a column that it touches and that weighs
    anything, int64 (rows,), or −1: two rows have the
    same as often as they touch the same columns (Broder, 1997)."""
    least = np.full(len(offsets) - 1, -1, np.int64)
    for row in range(len(least)):
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            if weights is not None and weights[column] == 0:
                continue
            if least[row] < 0 or drawn[column] < least[row]:
                least[row] = drawn[column]
    return least


@compiled
def _alike(offsets: Counts, neighbours: Parts, drawn: Counts) -> Counts:
    """Return a number for each row, the sum of those `drawn` for its columns, int64 (rows,): two rows have the same if
    they touch the same columns, and else hardly ever."""
    alike = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(alike)):
        for edge in range(offsets[row], offsets[row + 1]):
            alike[row] += drawn[neighbours[edge]]
    return alike


@compiled
def _join_neighbours(order: Counts, mark: Counts, sizes: Parts | Counts, largest: int, mate: Parts) -> None:
    """Give rows that follow each other in an order, and have the same mark, to each other as mates."""
    at = 0
    while at + 1 < len(order):
        one, other = order[at], order[at + 1]
        at += 1
        if mark[one] == mark[other] and sizes[one] + sizes[other] <= largest:
            mate[one], mate[other] = other, one
            at += 1


@compiled
def _numbers(mate: Parts) -> tuple[Parts, int]:
    """Number the pairs in the order of their first rows, so that rows that lay together still do."""
    became, number = np.full(len(mate), -1, np.int32), 0
    for row in range(len(mate)):
        if became[row] < 0:
            became[row] = number
            if mate[row] >= 0:
                became[mate[row]] = number
            number += 1
    return became, number


@compiled
def _union(
    offsets: Counts, neighbours: Parts, members: Parts, became: Parts, last: Parts, starts: Counts, found: Parts
) -> int:
    at = 0
    for row in members:
        to = became[row]
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            if last[column] != to:
                last[column] = to
                found[at] = column
                at += 1
        starts[to + 1] = at
    return at
