"""The possible sizes of a chunk, their goodput, and the search for the best one.

Goodput as a function of the size has one wide maximum for smooth lifetimes, a jump if lives end together, and several
maxima if they end in groups. So every search uses a fine grid over all decades first, and then finer grids around the
peaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chunk_model.goodput import Costs, chunk_goodput, job_s
from chunk_model.lifetime import Floats, Lifetime

Ints = NDArray[np.int64]

# Numbers of terms of a sum that are evaluated (see `goodput`): in first searches, in later searches, and for results.
# For smooth lifetimes the errors are below 1e-3, 1e-4 and 1e-5.
ROUGH, CLOSE, FULL = 64, 256, 4096
# Push intervals as fractions of a chunk. Some divide it evenly; the others leave a short last push, which pays off if
# machines of a certain age are about to die.
_SHAPES = (1, 0.97, 0.94, 0.91, 0.88, 0.84, 0.8, 0.75, 0.68, 0.6, 0.5, 0.45, 0.4, 0.34, 0.3, 0.26, 0.22, 0.19, 0.16)
# Number of local maxima that are refined. If lives end together, goodput has a local maximum for each number of chunks
# that fit into a life.
_CLIMBS = 4


@dataclass(frozen=True)
class Sizes:
    """The sizes from `lowest` to `highest`. Sizes k and push intervals j are whole numbers of batches."""

    lifetime: Lifetime
    costs: Costs
    batch: int  # vertices of a batch
    many: bool  # True: a worker takes chunk after chunk until it dies
    lowest: int  # batches
    highest: int  # batches

    @property
    def has_pushes(self) -> bool:
        return self.costs.push_s is not None

    def goodput(self, k: int | Ints, j: int | Ints | None, terms: int = FULL) -> Floats:
        """Return the goodput of chunks of k batches, pushed every j batches (None: not pushed), float64 in the shape of
        k."""
        every = None if j is None else np.minimum(k, j) * self.batch
        sizes = np.asarray(k, np.int64) * self.batch
        return np.asarray(
            chunk_goodput(self.lifetime, self.costs, sizes, many=self.many, push_every=every, terms=terms)
        )

    def exposed_s(self, k: int, j: int | None) -> float:
        """Return the seconds from the beginning of a life until its first credit."""
        boot_s = self.costs.boot_s if self.many else 0.0
        if j is None:
            return boot_s + job_s(self.costs, k * self.batch)
        copied_s = self.costs.start_s + k * self.batch * self.costs.copy_s
        return boot_s + copied_s + j * self.batch * self.costs.exec_s + (self.costs.push_s or 0.0)

    def best(self) -> tuple[int, int | None]:
        """Return the size with the highest goodput, and its push interval."""
        if not self.has_pushes:
            points = grid(self.lowest, self.highest, 512 if self.many else 4096)
            return _peak(lambda k: self.goodput(k, None, CLOSE), points, peaks=3), None
        k, j = self._pairs(32, 20, 128)
        values = _comparable(self.goodput(k, j, ROUGH))
        ends = [self._climbed(int(k[at]), int(j[at])) for at in _distinct_peaks(values, k, _CLIMBS)]
        return max(ends, key=lambda end: float(self.goodput(end[0], end[1], CLOSE)))

    def _climbed(self, size: int, interval: int) -> tuple[int, int]:
        """Improve a size and an interval by coordinate search. The result is never worse than the input."""
        for _ in range(2):
            size, interval = self._scaled(size, interval)
            interval = self.best_interval(size, interval)
            size = self._best_size(size, interval)
        return size, min(size, interval)

    def _scaled(self, k: int, j: int) -> tuple[int, int]:
        """Return the (size, interval) with the highest goodput among those in the ratio of k to j; never worse than
        (k, j)."""

        def interval(size: int | Ints) -> Ints:
            return np.maximum(np.rint(np.asarray(size) * (j / k)).astype(np.int64), self.lowest)

        candidates = np.union1d(grid(self.lowest, self.highest, 24), k)
        best = _peak(lambda k: self.goodput(k, interval(k), CLOSE), candidates)
        return best, int(interval(best))

    def _best_size(self, k: int, j: int) -> int:
        """Return the size with the highest goodput for pushes every j batches; never worse than k."""
        candidates = np.union1d(grid(self.lowest, self.highest, 24), k)
        return _peak(lambda k: self.goodput(k, j, CLOSE), candidates)

    def best_interval(self, k: int, j: int) -> int:
        """Return the push interval with the highest goodput for chunks of k batches; never worse than j."""
        candidates = np.union1d(grid(self.lowest, k, 24), min(j, k))
        return _peak(lambda j: self.goodput(np.full_like(j, k), j, CLOSE), candidates)

    def highest_goodput(self) -> float:
        """Return the goodput of the best size, to within about a percent, in a fraction of the time of `best`."""
        if not self.has_pushes:
            points = 256 if self.many else 2048
            return float(self.goodput(grid(self.lowest, self.highest, points), None, CLOSE).max())
        return float(self.goodput(*self._pairs(24, 16, 64), ROUGH).max())

    def smallest(self, k: int, j: int, enough: float) -> int:
        """Return the smallest size up to k whose goodput is at least `enough` times the goodput of k. The size is found
        to within 2%."""
        wanted = enough * float(self.goodput(k, j, CLOSE))
        candidates = grid(self.lowest, k, 64)
        while True:
            above = self.goodput(candidates, j, CLOSE) >= wanted
            above[-1] = True
            at = int(np.argmax(above))
            low, high = int(candidates[max(at - 1, 0)]), int(candidates[at])
            if high - low <= max(1, low // 50):
                return high
            candidates = np.unique(np.rint(np.linspace(low, high, 17)).astype(np.int64))

    def _pairs(self, sizes: int, intervals: int, fine: int) -> tuple[Ints, Ints]:
        """Return pairs of sizes and push intervals, as two arrays.

        If a chunk has few pushes, goodput depends on their exact times. So the pairs with few pushes have a grid of
        `fine` sizes, each with the intervals of `_SHAPES`.
        """
        k, j = np.meshgrid(grid(self.lowest, self.highest, sizes), grid(self.lowest, self.highest, intervals))
        few, part = np.meshgrid(grid(self.lowest, self.highest, fine), np.array(_SHAPES))
        few_j = np.maximum(np.ceil(few * part).astype(np.int64), self.lowest)
        return np.append(k[j <= k], few), np.append(j[j <= k], few_j)


def grid(low: int, high: int, points: int) -> Ints:
    """Return at most `points` whole numbers from low to high, evenly spaced in their logarithm."""
    return np.unique(np.rint(np.geomspace(low, high, points)).astype(np.int64))


def _distinct_peaks(values: Floats, sizes: Ints, most: int) -> list[int]:
    """Return the positions of at most `most` highest values, best first, whose sizes all differ by more than a
    quarter."""
    chosen: list[int] = []
    for at in np.argsort(-values, kind="stable").tolist():
        if all(abs(np.log(sizes[at] / sizes[other])) > np.log(1.25) for other in chosen):
            chosen.append(at)
            if len(chosen) == most:
                break
    return chosen


def _peak(value: Callable[[Ints], Floats], at: Ints, peaks: int = 1) -> int:
    """Return the whole number with the highest value. The search refines the `peaks` highest local maxima on the
    ascending grid `at`."""
    values = _comparable(value(at))
    before, after = np.append(-np.inf, values[:-1]), np.append(values[1:], -np.inf)
    tops: Ints = np.flatnonzero((values >= before) & (values >= after))
    tops = tops[np.argsort(-values[tops], kind="stable")][:peaks]
    best = [(int(at[tops[0]]), float(values[tops[0]]))]
    best += [_zoom(value, int(at[max(top - 1, 0)]), int(at[min(top + 1, len(at) - 1)])) for top in tops]
    return max(best, key=lambda pair: pair[1])[0]


def _comparable(values: Floats) -> Floats:
    """Replace NaN by −∞, which is never the maximum."""
    return np.where(np.isnan(values), -np.inf, values)


def _zoom(value: Callable[[Ints], Floats], low: int, high: int) -> tuple[int, float]:
    """Return (the best whole number from low to high, to within a thousandth; its value), if there is one maximum."""
    while True:
        at = np.unique(np.rint(np.linspace(low, high, 17)).astype(np.int64))
        values = _comparable(value(at))
        top = int(np.argmax(values))
        if high - low <= max(16, low // 1000):
            return int(at[top]), float(values[top])
        low, high = int(at[max(top - 1, 0)]), int(at[min(top + 1, len(at) - 1)])
