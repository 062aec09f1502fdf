"""The spread between pushes of different workers, from a sample, and the number of workers that help.

More workers help as long as what they bring has more in common than it has noise. A push of n vertices moves the
replica by n·G + √n·ε: a common direction G, and noise of covariance Σ. The noise scale B = tr(Σ)/|G|² (McCandlish
et al., arXiv 1812.06162, equation 2.8), in vertices, says what M vertices that are trained from one version are
worth: (B + n)/(B + M) of what they would be n after n (Pollux, arXiv 2008.12260, equation 7). With c workers M is
c·n, so together they are worth c·(B + n)/(B + c·n) workers: half of their work is lost where they are 2 + B/n, and
no number of them is worth more than 1 + B/n.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.protocol.push import ReplicaPart
from master.store.versions import Base

MIN_PUSHES = 16.0  # before anything is said
ERRORS = 2.0  # standard errors that the common direction must be long, to be more than an accident


@dataclass(frozen=True)
class Spread:
    """What pushes of a run have in common, as moves per vertex. `product` is the mean inner product of one of `pushes`
    with the last ones of other workers, an estimate of |G|² with the standard error `error`; `square` is the mean of
    n·|move|² over pushes of n vertices, which is n·|G|² + tr(Σ) on average, and `vertices` the mean of n."""

    pushes: float
    product: float
    error: float
    square: float
    vertices: float


def noise_scale(spread: Spread) -> tuple[float, bool]:
    """Return B in vertices, and whether that is an estimate; otherwise B is at least so large."""
    measured = spread.product > ERRORS * spread.error
    common = spread.product if measured else max(0.0, spread.product) + ERRORS * spread.error
    noise = max(0.0, spread.square - spread.vertices * max(0.0, spread.product))
    return (noise / common if common > 0 else math.inf), measured


def helpful_workers(spread: Spread) -> tuple[int | None, str]:
    """Return how many workers help at most, and why; None while too little is known to say."""
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
MAX_COORDINATES = 4_096  # of a replica that are looked at, spread over all its tensors
MAX_OTHERS = 8  # pushes before a push that it is compared with, those of its own worker left out
FADING = 0.98  # a push counts half as much after 34 others
REPORT_EVERY = 32  # pushes between two times that the spread is written down


class PushSpread:
    """Sums over the pushes of modules, of which those of late count most; `moves` says which tensors a step is
    measured in, by name: integers and running statistics are none. It ends with its master."""

    def __init__(self, moves: Callable[[str], bool]) -> None:
        self._moves = moves
        self._last: deque[tuple[str, Sample]] = deque(maxlen=MAX_OTHERS)  # who, and its move per vertex
        self._pushes = self._square = self._vertices = 0.0
        self._compared = self._weights_squared = self._product = self._product_squared = 0.0
        self._count = 0

    def add(self, worker: str, part: ReplicaPart, base: Base, vertices: int) -> None:
        """Take note of a push of so many vertices, which was trained from `base` and merged."""
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
        """Whether enough pushes came since the last time."""
        if self._count < REPORT_EVERY:
            return False
        self._count = 0
        return True

    @property
    def facts(self) -> Spread:
        """What is known by now."""
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
        """How far a push moves some coordinates, the same ones for every push of the same tensors, in whatever order
        these come: a version that was read from its file has another than one that was merged."""
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
        return np.concatenate([_every(tensor, step) - _every(old, step) for tensor, old in pairs])


def _product(one: Sample, other: Sample) -> float:
    """Return an inner product. BLAS would take several threads for it, which are the workers' where they train here."""
    return float(np.einsum("i,i->", one, other))


def _every(tensor: NDArray[Any], step: int) -> Sample:
    """Return the first coordinate of a tensor, and every `step`-th one after it."""
    return np.asarray(tensor.reshape(-1)[::step], np.float64)
