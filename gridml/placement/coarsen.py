"""Rows joined in pairs that share most of their columns: a smaller graph whose parts are parts of the larger one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled

Counts = NDArray[np.int64]
HEAVY = 100  # rows of a column, above which no mate is looked for in it: it says little, and there are many


def coarsen(graph: Bipartite, sizes: Parts, largest: int, rng: np.random.Generator) -> tuple[Bipartite, Parts, Parts]:
    """Return the smaller graph, its rows' sizes, and which row of it each row became, int32 (rows,).

    A row of it touches what both of the pair did, and is at most `largest` in size.
    """
    order = rng.permutation(graph.rows).astype(np.int32)
    by_column = graph.transposed
    became = np.full(graph.rows, -1, np.int32)
    count = _match(
        graph.offsets, graph.neighbours, by_column.offsets, by_column.neighbours, sizes, order, largest, HEAVY, became
    )
    members = np.argsort(became, kind="stable").astype(np.int32)
    offsets = np.zeros(count + 1, np.int64)
    found = np.empty(graph.edges, np.int32)
    last = np.full(graph.columns, -1, np.int32)
    used = _union(graph.offsets, graph.neighbours, members, became, last, offsets, found)
    joined = np.bincount(became, sizes, minlength=count).astype(np.int32)
    return Bipartite(offsets, found[:used].copy(), graph.columns), joined, became


@compiled
def _match(
    offsets: Counts,
    neighbours: Parts,
    column_offsets: Counts,
    rows_of: Parts,
    sizes: Parts,
    order: Parts,
    largest: int,
    heavy: int,
    became: Parts,
) -> int:
    """Number the pairs in the order of their first rows, so that rows that lay together still do."""
    count = len(sizes)
    score = np.zeros(count, np.float32)
    seen = np.empty(count, np.int32)
    mate = np.full(count, -1, np.int32)
    for row in order:
        if mate[row] >= 0:
            continue
        found = 0
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            degree = column_offsets[column + 1] - column_offsets[column]
            if degree < 2 or degree > heavy:
                continue
            share = np.float32(1.0 / (degree - 1))
            for at in range(column_offsets[column], column_offsets[column + 1]):
                other = rows_of[at]
                if mate[other] < 0 and other != row:
                    if score[other] == 0:
                        seen[found] = other
                        found += 1
                    score[other] += share
        best, most = -1, 0.0
        for at in range(found):
            other = seen[at]
            worth = score[other] / (sizes[other] * (offsets[other + 1] - offsets[other])) ** 0.5
            score[other] = 0
            if worth > most and sizes[row] + sizes[other] <= largest:
                best, most = other, worth
        if best >= 0:
            mate[row], mate[best] = best, row
    number = 0
    for row in range(count):
        if became[row] < 0:
            became[row] = number
            if mate[row] >= 0:
                became[mate[row]] = number
            number += 1
    return number


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
