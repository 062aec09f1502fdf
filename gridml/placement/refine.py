"""Refinement: passes that move rows between parts so that the parts touch fewer columns.

All methods that refine use this module: `Touches` holds the counts, `anneal` runs the passes, and `fit` brings parts
within their bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Counts, PartRates, Parts, Shares
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa import SPREAD
from gridml.placement.refine_kernel import BITS, Aim, Bounds, Pass, TouchCounts, count, shared, sweep

# After each pass, the price of a part that is 1% above its target size rises by 0.3% of a mean row's columns; see
# `anneal`.
RATE = 0.3
RUN = 64  # rows of a run: they are consecutive in memory, and a pass visits them one after another
MAX_EXPONENT = 600  # e to this power is a finite float64, and so are moderate multiples of it
MAX_PUSHES = 12  # maximum rounds of `fit` if rows differ in size, because then it can be impossible to fit them


@dataclass(frozen=True)
class Touches:
    """The part of each row, and the counts of what each part touches."""

    counts: TouchCounts  #: the arrays change in place
    units: Counts | None  #: the weights of columns that several rows touch, int64; None: 1 each
    even: NDArray[np.float64]  #: the target size of each part, float64 (parts,)
    unit: float  #: the mean weight of a column, averaged over all edges
    pace: PartRates | None = None  #: the costs of columns and work in each part; None: equal in all parts

    @staticmethod
    def of(
        graph: Bipartite,
        rows: Parts,
        parts: int,
        sizes: Parts | Counts | None = None,
        shares: Shares | None = None,
        pace: PartRates | None = None,
    ) -> Touches:
        """Count what parts touch. `rows`, the part of each row, is copied. Without `sizes` the size of a row is its
        weight. `shares` are the target fractions of the total size; None: equal."""
        times = np.bincount(graph.neighbours, minlength=graph.columns).astype(np.int32)
        weights = graph.column_weights
        begins, inside, alone, degrees, weighed = shared(graph.offsets, graph.neighbours, times, weights)
        units = None if weights is None else weighed
        starts = np.concatenate([[0], np.cumsum(np.minimum(degrees, parts), dtype=np.int64)])
        slots = np.zeros(starts[-1], np.int32)
        state = np.zeros((len(degrees), 2 * -(-parts // BITS)), np.uint16)
        rows = rows.copy()
        count(begins, inside, rows, starts, slots, state, parts)
        size = graph.row_weights if sizes is None else sizes
        if size is None:
            size = np.ones(len(rows), np.int32)
        load = _sums(rows, size, parts)
        touched = _sums(rows, alone, parts)
        for part in range(parts):
            touches = state[:, part // BITS] & np.uint16(1 << part % BITS)
            touched[part] += np.count_nonzero(touches) if units is None else units[touches != 0].sum()
        even = np.full(parts, load.mean()) if shares is None else load.sum() * shares
        unit = 1.0 if weights is None else max(1.0, float(weights @ times) / max(1, graph.edges))
        counts = TouchCounts(begins, inside, alone, size, rows, starts, slots, state, touched, load, np.zeros(parts))
        return Touches(counts, units, even, unit, pace)

    def copy(self) -> Touches:
        """Return an independent copy."""
        moving = ("rows", "slots", "state", "touched", "load", "price")
        copied = {name: getattr(self.counts, name).copy() for name in moving}
        return replace(self, counts=self.counts._replace(**copied))

    @property
    def rows(self) -> Parts:
        """The part of each row, int32 (rows,)."""
        return self.counts.rows

    @property
    def touched(self) -> Counts:
        """|N(U_i)|, the weight of the columns that each part touches, int64 (parts,)."""
        return self.counts.touched

    @property
    def load(self) -> Counts:
        """The size of each part, int64 (parts,)."""
        return self.counts.load

    @property
    def price(self) -> NDArray[np.float64]:
        """The price that a row pays in each part, in columns per unit of the row's size, float64 (parts,)."""
        return self.counts.price

    @property
    def part_costs(self) -> NDArray[np.float64]:
        """The cost of each part, float64 (parts,): |N(U_i)|; with a `pace`, its cost at the part's rates."""
        if self.pace is None:
            return self.touched.astype(np.float64)
        return self.pace.cost * self.touched + self.pace.fixed

    @property
    def max_power(self) -> int:
        """The highest power of an `Aim` that cannot overflow a float, even if one part holds all rows."""
        all_in_one = float(self.touched.sum())
        if self.pace is not None:
            all_in_one = float(self.pace.cost.max()) * all_in_one + float(self.pace.fixed.max())
        return int(max_power(all_in_one / max(1.0, float(self.part_costs.mean()))))

    def worth(self, aim: Aim) -> float:
        """Rate the present parts by an aim; lower is better. The result, in columns, is the power mean of the parts'
        costs, plus `flat` times their mean."""
        part_costs = self.part_costs
        largest = max(1.0, float(part_costs.max()))
        mean = float(np.mean((part_costs / largest) ** (aim.power + 1)))
        return float(largest * mean ** (1 / (aim.power + 1)) + aim.flat * part_costs.mean())

    def sweep(
        self,
        rng: np.random.Generator,
        bounds: Bounds,
        aim: Aim,
        *,
        heat: float = 0.0,
        push: float = 0.0,
    ) -> int:
        """Make one pass over all rows, in runs in random order. Return the number of moves. See
        `refine_kernel.sweep`."""
        runs = rng.permutation(-(-len(self.rows) // RUN))
        order = (runs[:, None] * RUN + np.arange(RUN)).ravel()
        order = order[order < len(self.rows)].astype(np.int32)
        once = Pass(order, heat * self.unit, push * self.unit, int(rng.integers(2**31)))
        return sweep(self.counts, self.units, self.pace, SPREAD, bounds.of(len(self.load)), aim, once)


def max_power(times: float) -> float:
    """Return the highest power of an `Aim` that cannot overflow a float if no part touches more than `times` the
    mean."""
    return float(MAX_EXPONENT / np.log(max(2.0, times)))


def anneal(tally: Touches, rng: np.random.Generator, bounds: Bounds, aim: Aim, heats: NDArray[np.float64]) -> None:
    """Run one pass at each of the heats (`refine_kernel.Pass`).

    Each row pays its part a price in proportion to the row's size. After a pass, the prices of parts above their target
    size rise, and those of the other parts fall. So a full part gives up a row that alone touches many of its columns,
    and takes a row that shares its columns with others. Sizes even out. Without prices the parts would soon reach their
    maximum sizes, and no row could move.
    """
    degree = len(tally.counts.inside) * tally.unit / max(1, tally.load.sum())
    for heat in heats:
        tally.sweep(rng, bounds, aim, heat=float(heat))
        tally.price[:] += RATE * degree * (tally.load / tally.even - 1)


def falling(heat: float, passes: int) -> NDArray[np.float64]:
    """Return the heat of each pass, falling linearly from `heat` towards 0, float64 (passes,)."""
    return heat * (1 - np.arange(passes) / max(1, passes))


def fit(tally: Touches, rng: np.random.Generator, bounds: Bounds, aim: Aim, pushes: int | None = None) -> None:
    """Move rows out of parts until every part is within `bounds`; rows whose move loses least move first.

    If rows differ in size, or if `bounds` limit what parts touch, there may be no solution: after `pushes` rounds the
    parts stay as they are. Without `pushes` the function returns only when all parts fit.
    """
    push, done = 1.0, 0
    while ((tally.load > bounds.most) | (tally.touched > bounds.limit)).any() and done != pushes:
        tally.sweep(rng, bounds, aim, push=push)
        push *= 2  # the accepted loss grows until rows move
        done += 1


def fit_and_polish(tally: Touches, rng: np.random.Generator, bounds: Bounds, aim: Aim) -> None:
    """Bring parts within `bounds`, then run up to two passes without heat. If rows differ in size, parts can remain
    outside the bounds."""
    fit(tally, rng, bounds, aim, MAX_PUSHES)
    for _ in range(2):
        if not tally.sweep(rng, bounds, aim):
            break


def sizes(
    work: int, parts: int, slack: float, loose: float = 0.0, shares: Shares | None = None, row: int = 1
) -> Bounds:
    """Return the bounds of each part's work. The maximum is (1 + max(slack, loose)) times its share, plus the work of
    one `row`. The minimum is 1, or with `loose` (1 − loose) times its share if that is more."""
    room = (1 + max(slack, loose)) * work
    most = (room / parts if shares is None else room * shares) + row
    even = work / parts if shares is None else work * shares
    least = np.maximum(1, even * (1 - loose)) if loose else 1.0
    return Bounds(_whole(least), _whole(most))


def _whole(sizes: float | Shares) -> int | Counts:
    return sizes.astype(np.int64) if isinstance(sizes, np.ndarray) else int(sizes)


def _sums(rows: Parts, weights: Parts | Counts, parts: int) -> NDArray[np.int64]:
    return np.bincount(rows, weights, minlength=parts).astype(np.int64)
