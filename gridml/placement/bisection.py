"""Recursive bisection: divides rows in two, and each half again, so that both halves touch few columns.

The cost of a division is the weight of the columns that both sides touch. The two halves are divided independently, so
the costs of all divisions add up to Σ|N(U_i)| − |V|, where |N(U_i)| is the weight of the columns that part i touches.
Bisection lowers only this sum, and ignores how even the |N(U_i)| are. Each division is multilevel. Rows are clustered
until few are left. Then a half is grown several times, each time from another random row, and the best division is
refined at every level up to the given graph (`bisection_kernel.refine_bisection`). `refine_pairs` refines any two parts
in the same way: a move between them changes the sum by an amount that does not depend on the other parts.

Clustering joins rows that share most of their columns. Each cluster becomes a row of a smaller graph, so a placement of
the smaller graph is also a placement of the larger one. A row can join a whole cluster. In matching it could only join
a single row, so rows visited late would be matched with dissimilar rows, because the similar ones are taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gridml.codegen.compiled import compiled
from gridml.placement.base import Counts, Parts, Shares
from gridml.placement.bipartite import Bipartite, BothSides
from gridml.placement.bisection_kernel import Sides, both_sides, grow, refine_bisection
from gridml.placement.refine_kernel import shared

# A row's part times this is added to the row's hash, so that rows of different parts do not match.
_PART_SALT = 0x9E3779B97F4A7C15 >> 1
# Columns with more rows are ignored when a row looks for a cluster: they show little similarity, and take most time.
MAX_COLUMN_ROWS = 100
SHRINK = 2.5  # the largest factor by which one step reduces the number of rows


def coarsen(
    graph: Bipartite,
    sizes: Parts | Counts,
    largest: int,
    rng: np.random.Generator,
    within: Parts | None = None,
    fewest: int = 1,
) -> tuple[Bipartite, Parts | Counts, Parts]:
    """Cluster rows. Return the smaller graph, the size of each of its rows, and, for each given row, the row of the
    smaller graph that it became, int32 (rows,).

    A row of the smaller graph touches all columns of its cluster, and its size is at most `largest`. Some rows find no
    cluster, because every column that they share has more than MAX_COLUMN_ROWS rows. Among these rows, those that touch
    the same columns are joined in pairs. If too many rows are still left, rows without a cluster are sorted by min-wise
    hashes of their columns, and neighbours with the same hash are joined. If `within`, the part of each row, int32
    (rows,), is given, no cluster spans two parts. At least `fewest` rows are left.
    """
    wanted = max(fewest, int(graph.rows / SHRINK))
    order = rng.permutation(graph.rows).astype(np.int32)
    columns_of, weights = (graph.offsets, graph.neighbours), graph.column_weights
    leader, left = _clusters(graph.both_sides, weights, sizes, order, largest, MAX_COLUMN_ROWS, wanted, within)
    if left > wanted:
        # The hash of a row sums one random number per column: equal sums almost certainly mean equal columns.
        drawn = rng.integers(1, 2**62, graph.columns)
        if weights is not None:
            drawn[weights == 0] = 0
        alike = _alike(*columns_of, drawn)
        if within is not None:
            alike += within * np.int64(_PART_SALT)
        alone = _alone(leader)
        by_mark = alone[np.argsort(alike[alone], kind="stable")]
        left -= _join_neighbours(by_mark, alike, sizes, largest, leader, left - wanted)
    if left > wanted:
        # Each row has two min-wise hashes. Only rows with the same first hash are joined. Sorting by the second hash
        # puts the most similar of them side by side.
        first, second = (_least(*columns_of, weights, rng.permutation(graph.columns)) for _ in range(2))
        alone = _alone(leader)
        alone = alone[first[alone] >= 0]
        if within is not None:
            first = np.where(first < 0, -1, first + within.astype(np.int64) * graph.columns)
        by_mark = alone[np.lexsort((second[alone], first[alone]))]
        _join_neighbours(by_mark, first, sizes, largest, leader, left - wanted)
    became, count = _numbers(leader)
    members = np.argsort(became, kind="stable").astype(np.int32)
    offsets = np.zeros(count + 1, np.int64)
    neighbours = np.empty(graph.edges, np.int32)
    last = np.full(graph.columns, -1, np.int32)
    used = _union(*columns_of, members, became, last, offsets, neighbours)
    joined = np.bincount(became, sizes, minlength=count).astype(np.int64)
    smaller = Bipartite(offsets, neighbours[:used].copy(), graph.columns, None, weights)
    if graph.row_weights is None:
        return smaller, joined.astype(np.int32), became
    return replace(smaller, row_weights=joined), joined, became


def _alone(leader: Parts) -> Counts:
    """Return the rows that no other row has joined and that have joined no other."""
    return np.flatnonzero(np.bincount(leader, minlength=len(leader))[leader] == 1)


@compiled
def _clusters(
    graph: BothSides,
    weights: Counts | None,
    sizes: Parts | Counts,
    order: Parts,
    largest: int,
    heavy: int,
    wanted: int,
    within: Parts | None,
) -> tuple[Parts, int]:
    """Return the leader of each row's cluster, int32 (rows,), and the number of clusters, at least `wanted`.

    In the given `order`, each row without a cluster joins the cluster with the highest score, within its own part if
    `within` is given. A column that the row touches, with d rows in all, adds weight/(d − 1) to a cluster's score for
    each row of the cluster that touches the column too. This sum is divided by the geometric mean of the cluster's size
    and the degree of its leader. Columns of more than `heavy` rows are ignored.
    """
    offsets, neighbours, column_offsets, rows_of = graph
    rows = len(sizes)
    leader, together = np.arange(rows).astype(np.int32), sizes.astype(np.int64)
    followed = np.zeros(rows, np.bool_)  # leaders of other rows: they do not join a cluster themselves
    score, met = np.zeros(rows, np.float32), np.empty(rows, np.int32)  # `score` is zero again after each row
    left = rows
    for row in order:
        if left <= wanted:
            break
        if followed[row]:
            continue
        several = 0
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
                if other == row or (within is not None and within[other] != within[row]):
                    continue
                to = leader[other]
                if score[to] == 0:
                    met[several] = to
                    several += 1
                score[to] += share
        best, most = -1, 0.0
        for at in range(several):
            to = met[at]
            worth = score[to] / (max(1, together[to]) * (offsets[to + 1] - offsets[to])) ** 0.5
            score[to] = 0
            if worth > most and together[row] + together[to] <= largest:
                best, most = to, worth
        if best >= 0:
            leader[row] = best
            together[best] += together[row]
            followed[best] = True
            left -= 1
    return leader, left


@compiled
def _least(offsets: Counts, neighbours: Parts, weights: Counts | None, drawn: Counts) -> Counts:
    """Return the min-wise hash of each row, int64 (rows,): the least of the numbers `drawn` for its columns of positive
    weight; −1 if it has none. The probability that two rows have the same hash is the Jaccard similarity of their
    columns (Broder, 1997)."""
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
    """Return a hash of each row's set of columns, int64 (rows,): the sum of the numbers `drawn` for them."""
    alike = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(alike)):
        for edge in range(offsets[row], offsets[row + 1]):
            alike[row] += drawn[neighbours[edge]]
    return alike


@compiled
def _join_neighbours(order: Counts, mark: Counts, sizes: Parts | Counts, largest: int, leader: Parts, most: int) -> int:
    """Join pairs of rows that are neighbours in `order` and have the same mark, up to `most` pairs. Return the number
    of pairs."""
    at, joined = 0, 0
    while at + 1 < len(order) and joined < most:
        one, other = order[at], order[at + 1]
        at += 1
        if mark[one] == mark[other] and sizes[one] + sizes[other] <= largest:
            leader[other] = one
            joined += 1
            at += 1
    return joined


@compiled
def _numbers(leader: Parts) -> tuple[Parts, int]:
    """Number the clusters in the order of their first rows, which preserves the locality of rows in memory."""
    number, became, count = np.full(len(leader), -1, np.int32), np.empty(len(leader), np.int32), 0
    for row in range(len(leader)):
        if number[leader[row]] < 0:
            number[leader[row]] = count
            count += 1
        became[row] = number[leader[row]]
    return became, count


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


MAX_COARSEST_ROWS = 120  # clustering ends when this many rows are left; halves are grown in that smallest graph
SHRINKS = 0.95  # clustering ends when a step keeps more than this fraction of the rows
MIN_ROWS_PER_HALF = 15  # limits the size of a cluster, so that each half of the smallest graph has this many rows
TRIES = 12  # divisions of the smallest graph that are tried; the best is refined at the larger levels
PASSES, PATIENCE = 4, 300  # maximum passes of refinement; a pass ends after PATIENCE moves without an improvement
PARTNERS = 4  # each part is refined with this many others: those with which it shares most columns


class _Given(NamedTuple):
    """A graph to bisect. Columns that only one row touches are left out, because no division can cut them."""

    graph: Bipartite
    units: Counts  #: the weight of each column
    sizes: Counts  #: the size of each row
    sides: BothSides  #: the adjacency of `graph`

    @staticmethod
    def of(graph: Bipartite, sizes: Counts) -> _Given:
        times = np.bincount(graph.neighbours, minlength=graph.columns).astype(np.int32)
        begins, inside, _, _, units = shared(graph.offsets, graph.neighbours, times, graph.sizes)
        kept = Bipartite(begins, inside, len(units), None, units)
        return _Given(kept, units, sizes, both_sides(begins, inside, len(units)))

    def refine_bisection(self, side: Sides, most: Counts) -> int:
        return refine_bisection(self.sides, self.units, self.sizes, side, most, PASSES, PATIENCE)

    def grow_half(self, order: Parts, wanted: int, anywhere: bool) -> Sides:
        return grow(self.sides, self.units, self.sizes, order, wanted, anywhere)


def bisect(graph: Bipartite, sizes: Counts, shares: Shares, loose: float, rng: np.random.Generator) -> Parts:
    """Return the part of each row, int32 (rows,). The graph must have at least as many rows as parts.

    `sizes` int64 (rows,) are the sizes of rows, `shares` float64 (parts,) the target fractions of the total size. A
    part exceeds its share by at most the fraction `loose`, unless rows are too heavy to fit.
    """
    rows = np.zeros(graph.rows, np.int32)
    todo = [(np.arange(graph.rows), 0, len(shares))]
    total = int(sizes.sum())
    while todo:
        members, first, last = todo.pop()
        parts = last - first
        if parts == 1:
            rows[members] = first
            continue
        middle = first + (parts + 1) // 2
        share = float(shares[first:middle].sum() / shares[first:last].sum())
        size = int(sizes[members].sum())
        # The slack is spread evenly over the levels of bisection that are left.
        room = max(1.0, (1 + loose) * total * float(shares[first:last].sum()) / max(1, size))
        fractions = np.array([share, 1 - share])
        most = np.ceil(fractions * size * room ** (1 / np.ceil(np.log2(parts)))).astype(np.int64)
        side = _bisect_once(_Given.of(graph.only(members), sizes[members]), share, most, rng)
        # Each half needs at least one row for each of its parts.
        if not middle - first <= np.count_nonzero(side == 0) <= len(members) - (last - middle):
            side = (np.arange(len(members)) * parts // len(members) >= middle - first).astype(np.int8)
        todo += [(members[side == 0], first, middle), (members[side == 1], middle, last)]
    return rows


def _bisect_once(given: _Given, share: float, most: Counts, rng: np.random.Generator) -> Sides:
    """Return the half of each row, int8 (rows,); the first half has the fraction `share` of the total size."""
    levels, became = [given], []
    size = int(given.sizes.sum())
    largest = max(1, int(size * min(share, 1 - share) / MIN_ROWS_PER_HALF))
    while levels[-1].graph.rows > MAX_COARSEST_ROWS:
        smaller, joined, to = coarsen(levels[-1].graph, levels[-1].sizes, largest, rng, fewest=MAX_COARSEST_ROWS // 2)
        if smaller.rows > SHRINKS * levels[-1].graph.rows:
            break
        levels.append(_Given.of(smaller, joined.astype(np.int64)))
        became.append(to)
    sides = []
    for at in range(TRIES):
        order = rng.permutation(levels[-1].graph.rows).astype(np.int32)
        side = levels[-1].grow_half(order, int(size * share), at % 2 == 0)
        cut = levels[-1].refine_bisection(side, most)
        over = np.bincount(side, levels[-1].sizes, minlength=2) - most
        sides.append((max(0, int(over.max())), cut, at, side))
    side = min(sides, key=lambda each: each[:3])[3]
    for level, to in zip(levels[-2::-1], became[::-1], strict=True):
        side = side[to]
        level.refine_bisection(side, most)
    return side


def refine_pairs(graph: Bipartite, sizes: Counts, rows: Parts, most: Counts) -> None:
    """Move rows between pairs of parts, in place, so that the parts touch fewer columns.

    `rows` int32 (rows,) is the part of each row, `most` int64 (parts,) the maximum size of each part. No part becomes
    empty.
    """
    parts = len(most)
    common = _common(graph, rows, parts)
    near = np.argsort(-common, axis=1, kind="stable")[:, :PARTNERS]
    pairs = {(min(a, b), max(a, b)) for a in range(parts) for b in near[a].tolist() if common[a, b] > 0}
    for a, b in sorted(pairs, key=lambda pair: (-common[pair], pair)):
        members = np.flatnonzero((rows == a) | (rows == b))
        side = (rows[members] == b).astype(np.int8)
        _Given.of(graph.only(members), sizes[members]).refine_bisection(side, most[[a, b]])
        if 0 < np.count_nonzero(side) < len(side):
            rows[members] = np.where(side, b, a)


def _common(graph: Bipartite, rows: Parts, parts: int) -> Counts:
    """Return the weight of columns that two parts both touch, int64 (parts, parts), with a zero diagonal."""
    touched = np.zeros((graph.columns, parts), np.float64)
    touched[graph.neighbours, np.repeat(rows, graph.degrees)] = 1
    common = (touched.T @ (touched * graph.sizes[:, None])).astype(np.int64)
    np.fill_diagonal(common, 0)
    return common
