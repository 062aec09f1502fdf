"""Parts by halving: rows divided in two, and each half again, so that few columns are touched on both sides.

What a division costs is what is touched on both sides of it, and halves do not know of each other: so the sum over all
divisions is Σ|N(U_i)| less the columns. It says nothing of how even |N(U_i)| are. Each division is multilevel: rows are
joined in clusters until few are left, those are grown into halves from several rows of chance, and the best is mended
on the way back (`halving_kernel.mend`).

`mend_pairs` mends any parts in the same way, two at a time: for the sum, what others touch beside them is all one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gridml.placement.base import Counts, Parts, Shares
from gridml.placement.bipartite import Bipartite, BothSides
from gridml.placement.coarsen import coarsen
from gridml.placement.halving_kernel import Sides, both_sides, grow, mend
from gridml.placement.refine_kernel import shared

FEW = 120  # rows that are left to be grown into halves
SHRINKS = 0.95  # a graph that keeps more of its rows is not joined further
HEAVIEST = 15  # rows, at least, of the smaller half of those
TRIES = 12  # halves that are grown, of which the best is gone on with
PASSES, PATIENCE = 4, 300  # of mending, and moves in vain after which one ends
PARTNERS = 4  # parts with which each is mended, those that share most with it


class _Given(NamedTuple):
    """A graph without columns that one row touches, and what its rows and columns count."""

    graph: Bipartite
    units: Counts
    sizes: Counts
    sides: BothSides

    @staticmethod
    def of(graph: Bipartite, sizes: Counts) -> _Given:
        times = np.bincount(graph.neighbours, minlength=graph.columns).astype(np.int32)
        begins, inside, _, _, units = shared(graph.offsets, graph.neighbours, times, graph.sizes)
        kept = Bipartite(begins, inside, len(units), None, units)
        return _Given(kept, units, sizes, both_sides(begins, inside, len(units)))

    def mend(self, side: Sides, most: Counts) -> int:
        return mend(self.sides, self.units, self.sizes, side, most, PASSES, PATIENCE)

    def grown(self, order: Parts, wanted: int, anywhere: bool) -> Sides:
        return grow(self.sides, self.units, self.sizes, order, wanted, anywhere)


def halved(graph: Bipartite, sizes: Counts, shares: Shares, loose: float, rng: np.random.Generator) -> Parts:
    """Return the part of each row, int32 (rows,), of at least as many rows as parts.

    `sizes` int64 (rows,) are what rows count in the size of a part, `shares` float64 (parts,) the fractions of all that
    parts should have; what is heavy need not fit, the rest is at most `loose` of a share above it.
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
        room = max(1.0, (1 + loose) * total * float(shares[first:last].sum()) / max(1, size))
        fractions = np.array([share, 1 - share])
        most = np.ceil(fractions * size * room ** (1 / np.ceil(np.log2(parts)))).astype(np.int64)
        side = _halves(_Given.of(graph.only(members), sizes[members]), share, most, rng)
        if not middle - first <= np.count_nonzero(side == 0) <= len(members) - (last - middle):
            side = (np.arange(len(members)) * parts // len(members) >= middle - first).astype(np.int8)
        todo += [(members[side == 0], first, middle), (members[side == 1], middle, last)]
    return rows


def _halves(given: _Given, share: float, most: Counts, rng: np.random.Generator) -> Sides:
    """Return the half of each row, int8 (rows,), the first with so much of all."""
    levels, became = [given], []
    size = int(given.sizes.sum())
    largest = max(1, int(size * min(share, 1 - share) / HEAVIEST))
    while levels[-1].graph.rows > FEW:
        smaller, joined, to = coarsen(levels[-1].graph, levels[-1].sizes, largest, rng, fewest=FEW // 2)
        if smaller.rows > SHRINKS * levels[-1].graph.rows:
            break
        levels.append(_Given.of(smaller, joined.astype(np.int64)))
        became.append(to)
    sides = []
    for at in range(TRIES):
        order = rng.permutation(levels[-1].graph.rows).astype(np.int32)
        side = levels[-1].grown(order, int(size * share), at % 2 == 0)
        cut = levels[-1].mend(side, most)
        over = np.bincount(side, levels[-1].sizes, minlength=2) - most
        sides.append((max(0, int(over.max())), cut, at, side))
    side = min(sides, key=lambda each: each[:3])[3]
    for level, to in zip(levels[-2::-1], became[::-1], strict=True):
        side = side[to]
        level.mend(side, most)
    return side


def mend_pairs(graph: Bipartite, sizes: Counts, rows: Parts, most: Counts) -> None:
    """Move rows between two parts at a time so that they touch fewer columns, in place.

    `rows` int32 (rows,) is the part of each; no part gets larger than its `most`, int64 (parts,), and none is left
    without rows.
    """
    parts = len(most)
    common = _common(graph, rows, parts)
    near = np.argsort(-common, axis=1, kind="stable")[:, :PARTNERS]
    pairs = {(min(a, b), max(a, b)) for a in range(parts) for b in near[a].tolist() if common[a, b] > 0}
    for a, b in sorted(pairs, key=lambda pair: (-common[pair], pair)):
        members = np.flatnonzero((rows == a) | (rows == b))
        side = (rows[members] == b).astype(np.int8)
        _Given.of(graph.only(members), sizes[members]).mend(side, most[[a, b]])
        if 0 < np.count_nonzero(side) < len(side):
            rows[members] = np.where(side, b, a)


def _common(graph: Bipartite, rows: Parts, parts: int) -> Counts:
    """Return what each two parts both touch, int64 (parts, parts), 0 for each by itself."""
    touched = np.zeros((graph.columns, parts), np.float64)
    touched[graph.neighbours, np.repeat(rows, graph.degrees)] = 1
    common = (touched.T @ (touched * graph.sizes[:, None])).astype(np.int64)
    np.fill_diagonal(common, 0)
    return common
