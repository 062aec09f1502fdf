"""Refinement: passes over the rows that move each to the part where it leaves fewer columns touched.

Every method that refines does it here: `Tally` keeps the counts, `anneal` runs the passes, and `fit` ends with parts
that are no larger than they may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa_block import SPREAD
from gridml.placement.refine_kernel import BITS, Aim, Bounds, Tallied, count, shared, sweep

# A part that has 1% more than its even share costs 0.3% of the columns of a mean row more from pass to pass.
RATE = 0.3
RUN = 64  # rows that are looked at one after the other, as they lie in memory


class Tally(Tallied):
    """Who touches what, counted, and rows moved."""

    @staticmethod
    def of(graph: Bipartite, rows: Parts, parts: int, sizes: Parts | None = None) -> Tally:
        """Count who touches what; without `sizes` each row counts one. The given rows stay as they are."""
        times = np.bincount(graph.neighbours, minlength=graph.columns).astype(np.int32)
        begins, inside, alone, degrees = shared(graph.offsets, graph.neighbours, times)
        starts = np.concatenate([[0], np.cumsum(np.minimum(degrees, parts), dtype=np.int64)])
        slots = np.zeros(starts[-1], np.int32)
        state = np.zeros((len(degrees), 2 * -(-parts // BITS)), np.uint16)
        rows = rows.copy()
        count(begins, inside, rows, starts, slots, state, parts)
        size = np.ones(len(rows), np.int32) if sizes is None else sizes
        load = _sums(rows, size, parts)
        touched = _sums(rows, alone, parts)
        for part in range(parts):
            touched[part] += np.count_nonzero(state[:, part // BITS] & np.uint16(1 << part % BITS))
        return Tally(begins, inside, alone, size, rows, starts, slots, state, touched, load, np.zeros(parts))

    def worth(self, aim: Aim) -> float:
        """What passes lower, as columns of a part: a mean of |N(U_i)| to this power, and `flat` times the plain one."""
        largest = max(1, int(self.touched.max()))
        mean = float(np.mean((self.touched / largest) ** (aim.power + 1)))
        return float(largest * mean ** (1 / (aim.power + 1)) + aim.flat * self.touched.mean())

    def sweep(
        self,
        rng: np.random.Generator,
        bounds: Bounds,
        aim: Aim,
        *,
        heat: float = 0.0,
        push: float = 0.0,
    ) -> int:
        """One pass over all rows in runs of an order of chance; return how many moved. See `refine_kernel.sweep`."""
        runs = rng.permutation(-(-len(self.rows) // RUN))
        order = (runs[:, None] * RUN + np.arange(RUN)).ravel()
        order = order[order < len(self.rows)].astype(np.int32)
        seed = int(rng.integers(2**31))
        return sweep(self, order, SPREAD, bounds, aim, heat, push, seed)


def anneal(tally: Tally, rng: np.random.Generator, bounds: Bounds, aim: Aim, heats: NDArray[np.float64]) -> None:
    """Run a pass at each of the heats.

    Parts that fill up grow dear, and those that empty cheap: so rows with few columns of their own go where those with
    many came from, and the sizes even out by themselves. Without prices, parts stand at the bounds and trade no more.
    """
    degree = len(tally.inside) / max(1, tally.load.sum())
    for heat in heats:
        tally.sweep(rng, bounds, aim, heat=float(heat))
        tally.price[:] += RATE * degree * (tally.load / tally.load.mean() - 1)


def falling(heat: float, passes: int) -> NDArray[np.float64]:
    """Return the heats of passes that fall from this one to none, float64 (passes,)."""
    return heat * (1 - np.arange(passes) / max(1, passes))


def fit(tally: Tally, rng: np.random.Generator, bounds: Bounds, aim: Aim, pushes: int | None = None) -> None:
    """Bring every part to at most `bounds.most`, what costs least first. Rows of several sizes need not fit: give a
    number of `pushes` after which what is too large stays so."""
    push, done = 1.0, 0
    while (tally.load > bounds.most).any() and done != pushes:
        tally.sweep(rng, bounds, aim, push=push)
        push *= 1.5
        done += 1


def settle(tally: Tally, rng: np.random.Generator, bounds: Bounds, aim: Aim) -> None:
    """End within `bounds`, and gain what two passes without heat find there."""
    fit(tally, rng, bounds, aim)
    for _ in range(2):
        tally.sweep(rng, bounds, aim)


def _sums(rows: Parts, weights: Parts, parts: int) -> NDArray[np.int64]:
    return np.bincount(rows, weights, minlength=parts).astype(np.int64)
