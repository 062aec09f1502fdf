"""The order in which an epoch trains its vertices: a pure function of seed, epoch and size, so nobody has to store it.

An epoch is a line of positions 0..n-1; leases and credits are ranges of positions. `EpochOrder.vertices` says which
vertex stands at each. Vertices of one connected component (a *unit*) stand side by side and ranges end between units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shuffle = Literal["all", "block", "none"]
BLOCK = 4096  # positions per block of Shuffle "block": one page of file-backed rows is read once, not once per vertex


@dataclass(frozen=True)
class Units:
    """Components of local vertices: unit u is `members[offsets[u]:offsets[u+1]]` (int64 vertex indices)."""

    offsets: NDArray[np.int64]
    members: NDArray[np.int64]

    @property
    def largest(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))


class EpochOrder:
    """The order of one epoch over `count` vertices.

    `shuffle`: "all" permutes every unit of the epoch; "block" permutes only inside blocks of 4,096 neighbouring units,
    which reads a memory-mapped file nearly in sequence and keeps the locality of a placement; "none" keeps the order
    of the graph.
    """

    def __init__(self, count: int, seed: int, epoch: int, shuffle: Shuffle, units: Units | None = None) -> None:
        self.count = count
        self._units = units
        order = np.arange(count if units is None else len(units.offsets) - 1, dtype=np.int64)
        if shuffle == "all":
            np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).shuffle(order)
        elif shuffle == "block":
            for block in range(0, len(order), BLOCK):
                rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, block])))
                rng.shuffle(order[block : block + BLOCK])
        self._order = order
        self._ends = None if units is None else np.cumsum(np.diff(units.offsets)[order])

    def vertices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the vertex indices at positions [start, stop); both must be boundaries."""
        if self._units is None or self._ends is None:
            return self._order[start:stop]
        first, last = self._unit_at(start), self._unit_at(stop)
        offsets, members = self._units.offsets, self._units.members
        if first == last:
            return members[:0]
        return np.concatenate([members[offsets[u] : offsets[u + 1]] for u in self._order[first:last]])

    def boundary(self, position: int) -> int:
        """Return the first position at or after `position` that does not cut a unit."""
        if self._ends is None or position <= 0:
            return min(max(position, 0), self.count)
        return int(self._ends[min(int(np.searchsorted(self._ends, position)), len(self._ends) - 1)])

    def ends(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """Return the ends of the units in [start, stop), relative to `start`; None where every vertex is a unit of its
        own."""
        if self._ends is None:
            return None
        return self._ends[self._unit_at(start) : self._unit_at(stop)] - start

    def _unit_at(self, position: int) -> int:
        assert self._ends is not None
        return 0 if position == 0 else int(np.searchsorted(self._ends, position)) + 1
