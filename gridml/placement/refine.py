"""Refinement: passes over the rows that move each to the part where it leaves fewer columns touched.

Every method that refines does it here: `Tally` keeps the counts, `anneal` runs the passes, and `fit` ends with parts
that are no larger than they may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite
from gridml.placement.neighbour_sets import WORD
from gridml.placement.parsa_block import SPREAD
from gridml.placement.refine_kernel import Counts, Words, count, shared, sweep

# A part that has 1% more than its even share costs 0.3% of the columns of a mean row more from pass to pass.
RATE = 0.3


class Bounds(NamedTuple):
    """The least and the most of a part's size."""

    least: int
    most: int


@dataclass(frozen=True)
class Tally:
    """Who touches what while rows move: the arrays change in place.

    `rows` int32 (rows,) the part of each, `sizes` int32 (rows,) how much each counts in the size of its part, `touched`
    int64 (parts,) |N(U_i)|, `load` int64 (parts,) the size of each part,
    `price` float64 (parts,) what a row's place costs there, in columns for each of its size.
    The others are as refine_kernel has them.
    """

    begins: Counts
    inside: Parts
    alone: Parts
    sizes: Parts
    rows: Parts
    starts: Counts
    slots: Parts
    state: Words
    touched: Counts
    load: Counts
    price: NDArray[np.float64]

    @staticmethod
    def of(graph: Bipartite, rows: Parts, parts: int, sizes: Parts | None = None) -> Tally:
        """Count who touches what; without `sizes` each row counts one. The given rows stay as they are."""
        times = np.bincount(graph.neighbours, minlength=graph.columns).astype(np.int32)
        begins, inside, alone, degrees = shared(graph.offsets, graph.neighbours, times)
        starts = np.concatenate([[0], np.cumsum(np.minimum(degrees, parts), dtype=np.int64)])
        slots = np.zeros(starts[-1], np.int32)
        words = -(-parts // WORD)
        state = np.zeros((len(degrees), 2 * words), np.uint64)
        rows = rows.copy()
        count(begins, inside, rows, starts, slots, state, parts)
        size = np.ones(len(rows), np.int32) if sizes is None else sizes
        load = _sums(rows, size, parts)
        touched = _sums(rows, alone, parts)
        for part in range(parts):
            touched[part] += np.count_nonzero(state[:, part // WORD] & np.uint64(1 << part % WORD))
        return Tally(begins, inside, alone, size, rows, starts, slots, state, touched, load, np.zeros(parts))

    def worth(self, power: float) -> float:
        """The objective whose slope is a part's weight: Σ |N(U_i)|^(power + 1), as a mean of that power."""
        largest = max(1, int(self.touched.max()))
        return float(largest * np.mean((self.touched / largest) ** (power + 1)) ** (1 / (power + 1)))

    def sweep(
        self,
        rng: np.random.Generator,
        bounds: Bounds,
        power: float,
        *,
        heat: float = 0.0,
        push: float = 0.0,
    ) -> int:
        """One pass over all rows in an order of chance; return how many moved. See `refine_kernel.sweep`."""
        order = rng.permutation(len(self.rows)).astype(np.int32)
        seed = int(rng.integers(2**31))
        return sweep(
            self.begins,
            self.inside,
            self.alone,
            self.sizes,
            order,
            self.rows,
            self.starts,
            self.slots,
            self.state,
            SPREAD,
            self.touched,
            self.load,
            self.price,
            bounds.least,
            bounds.most,
            power,
            heat,
            push,
            seed,
        )


def anneal(
    tally: Tally, rng: np.random.Generator, bounds: Bounds, power: float, *, passes: int, heat: float, cold: int = 2
) -> None:
    """Run `passes` of falling heat, and then at most `cold` without any.

    Parts that fill up grow dear, and those that empty cheap: so rows with few columns of their own go where those with
    many came from, and the sizes even out by themselves. Without prices, parts stand at the bounds and trade no more.
    """
    degree = len(tally.inside) / max(1, tally.load.sum())
    for at in range(passes):
        tally.sweep(rng, bounds, power, heat=heat * (1 - at / passes))
        tally.price[:] += RATE * degree * (tally.load / tally.load.mean() - 1)
    for _ in range(cold):
        if not tally.sweep(rng, bounds, power):
            break


def fit(tally: Tally, rng: np.random.Generator, bounds: Bounds, power: float, pushes: int | None = None) -> None:
    """Bring every part to at most `bounds.most`, what costs least first. Rows of several sizes need not fit: give a
    number of `pushes` after which what is too large stays so."""
    push, done = 1.0, 0
    while (tally.load > bounds.most).any() and done != pushes:
        tally.sweep(rng, bounds, power, push=push)
        push *= 1.5
        done += 1


def settle(tally: Tally, rng: np.random.Generator, bounds: Bounds, power: float) -> None:
    """End within `bounds`, and gain what two more passes without heat find there."""
    fit(tally, rng, bounds, power)
    for _ in range(2):
        tally.sweep(rng, bounds, power)


def _sums(rows: Parts, weights: Parts, parts: int) -> NDArray[np.int64]:
    return np.bincount(rows, weights, minlength=parts).astype(np.int64)
