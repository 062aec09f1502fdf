"""What the pushes of different workers have in common, and how they differ: measured as they come, from a sample."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.protocol.push import ReplicaPart
from master.decisions.helpful import Spread
from master.store.versions import Base

Sample = NDArray[np.float64]
COORDINATES = 4_096  # of a replica that are looked at, spread over all its tensors
OTHERS = 8  # pushes before a push that it is compared with, those of its own worker left out
FADING = 0.98  # a push counts half as much after 34 others
EVERY = 32  # pushes between two times that the spread is written down


class PushSpread:
    """Sums over the pushes of modules, of which those of late count most; `moves` says which tensors a step is
    measured in, by name: integers and running statistics are none. It ends with its master."""

    def __init__(self, moves: Callable[[str], bool]) -> None:
        self._moves = moves
        self._last: deque[tuple[str, Sample]] = deque(maxlen=OTHERS)  # who, and its move per vertex
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
        if self._count < EVERY:
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
        step = -(-total // COORDINATES)
        return np.concatenate([_every(tensor, step) - _every(old, step) for tensor, old in pairs])


def _product(one: Sample, other: Sample) -> float:
    """Return an inner product. BLAS would take several threads for it, which are the workers' where they train here."""
    return float(np.einsum("i,i->", one, other))


def _every(tensor: NDArray[Any], step: int) -> Sample:
    """Return the first coordinate of a tensor, and every `step`-th one after it."""
    return np.asarray(tensor.reshape(-1)[::step], np.float64)
