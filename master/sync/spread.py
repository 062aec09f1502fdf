"""Spread of the pushes of different workers, from a sample of coordinates, and the number of workers that help.

More workers help as long as their pushes have more in common than noise. A push of n vertices moves the replica by n·G
+ √n·ε: G is the common direction, and ε is noise of covariance Σ. The noise scale is B = tr(Σ)/|G|², in vertices
(McCandlish et al., arXiv 1812.06162, equation 2.8). M vertices that are trained from one version are worth (B + n)/(B +
M) times as much as M vertices that are trained in sequence, n from each version (Pollux, arXiv 2008.12260, equation 7).
With c workers M is c·n, so together they are worth c·(B + n)/(B + c·n) workers: half of their work is lost at 2 + B/n
workers, and no number of workers is worth more than 1 + B/n.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from gridml.protocol.push import ReplicaPart
from master.store.versions import Base

#: Effective number of compared pushes before the number of workers that help is estimated.
MIN_PUSHES = 16.0
#: Standard errors that the common direction must exceed to be significant.
ERRORS = 2.0


@dataclass(frozen=True)
class Spread:
    """Moments of the pushes of a run, as moves per vertex."""

    #: effective number of pushes that were compared
    pushes: float
    #: mean inner product of a push with the last ones of other workers: an estimate of |G|²
    product: float
    #: standard error of `product`
    error: float
    #: mean of n·|move|² over pushes of n vertices: n·|G|² + tr(Σ) on average
    square: float
    #: mean number n of vertices of a push
    vertices: float


def noise_scale(spread: Spread) -> tuple[float, bool]:
    """Return (B in vertices, True if that is an estimate and False if it is a lower bound)."""
    measured = spread.product > ERRORS * spread.error
    common = spread.product if measured else max(0.0, spread.product) + ERRORS * spread.error
    noise = max(0.0, spread.square - spread.vertices * max(0.0, spread.product))
    return (noise / common if common > 0 else math.inf), measured


def helpful_workers(spread: Spread) -> tuple[int | None, str]:
    """Return (the largest number of workers that help, why); None while too little is known."""
    if not spread.pushes >= MIN_PUSHES or not spread.square > 0:
        return None, f"{spread.pushes:.0f} pushes were compared with those of others, expected {MIN_PUSHES:.0f}"
    scale, measured = noise_scale(spread)
    if not math.isfinite(scale):
        return None, "the pushes have no direction in common"
    count = 1 + int(scale / spread.vertices)
    at = "at" if measured else "at no fewer than"
    return count, (
        f"the noise of the pushes is as large as what they have in common {at} {scale:,.0f} vertices, and a push "
        f"has {spread.vertices:,.0f}"
    )


Sample = NDArray[np.float64]
#: Sampled coordinates of a replica, spread over all its tensors.
MAX_COORDINATES = 4_096
#: Preceding pushes that a push is compared with, without those of its own worker.
MAX_OTHERS = 8
#: Decay per push: a push counts half as much after 34 others.
FADING = 0.98
#: Pushes between two records of the spread.
REPORT_EVERY = 32


class PushSpread:
    """Decaying sums over the pushes of modules. It is not saved: a new master starts empty.

    `moves` selects by name the tensors in which a step is measured: integers and running statistics are not trained.
    """

    def __init__(self, moves: Callable[[str], bool]) -> None:
        self._moves = moves
        #: (worker, move per vertex) of the last pushes
        self._last: deque[tuple[str, Sample]] = deque(maxlen=MAX_OTHERS)
        self._pushes = self._square = self._vertices = 0.0
        self._compared = self._weights_squared = self._product = self._product_squared = 0.0
        self._count = 0

    def add(self, worker: str, part: ReplicaPart, base: Base, vertices: int) -> None:
        """Record a merged push of `vertices` vertices that was trained from `base`."""
        move = self._sampled(part, base)
        if move is None or vertices < 1:
            return
        move /= vertices
        square = _product(move, move)
        if not math.isfinite(square):
            return
        self._count += 1
        self._pushes = FADING * self._pushes + 1
        self._square = FADING * self._square + vertices * square
        self._vertices = FADING * self._vertices + vertices
        others = [other for name, other in self._last if name != worker and other.shape == move.shape]
        if others:
            self._compare(sum(_product(move, other) for other in others) / len(others))
        self._last.append((worker, move))

    def _compare(self, product: float) -> None:
        self._compared = FADING * self._compared + 1
        self._weights_squared = FADING**2 * self._weights_squared + 1
        self._product = FADING * self._product + product
        self._product_squared = FADING * self._product_squared + product**2

    @property
    def due(self) -> bool:
        """True once after every `REPORT_EVERY` pushes; reading it resets the count."""
        if self._count < REPORT_EVERY:
            return False
        self._count = 0
        return True

    @property
    def facts(self) -> Spread:
        """The moments so far."""
        if not self._compared:
            return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
        mean, independent = self._product / self._compared, self._compared**2 / self._weights_squared
        variance = max(0.0, self._product_squared / self._compared - mean**2)
        return Spread(
            pushes=independent,
            product=mean,
            error=math.sqrt(variance / max(1.0, independent - 1)),
            square=self._square / self._pushes,
            vertices=self._vertices / self._pushes,
        )

    def _sampled(self, part: ReplicaPart, base: Base) -> Sample | None:
        """Return the move of a push at the sampled coordinates; None where it moves none."""
        # Sorted, so that the same coordinates are sampled from every push: a version read from its file has its
        # tensors in another order than one that was merged.
        pairs = [
            (tensor, base.modules[key].tensors[name])
            for key, tensors in sorted(part.modules.items(), key=itemgetter(0))
            for name, tensor in sorted(tensors.items(), key=itemgetter(0))
            if self._moves(name)
        ]
        total = sum(tensor.size for tensor, _ in pairs)
        if not total:
            return None
        step = -(-total // MAX_COORDINATES)
        flat = [(tensor.reshape(-1)[::step], old.reshape(-1)[::step]) for tensor, old in pairs]
        return np.concatenate([np.subtract(*each, dtype=np.float64) for each in flat])


def _product(one: Sample, other: Sample) -> float:
    """Return an inner product."""
    # Not np.dot: BLAS would start threads on cores that belong to workers where these run on the same machine.
    return float(np.einsum("i,i->", one, other))
