"""Parts and ticks: how a pass over the data is divided where workers wait for one another.

The positions of a pass are divided into parts, and each part into as many mini-batches as every other. Tick t is the
t-th mini-batch of every part. With slack s the t-th mini-batch of a part begins only when all parts have completed
t-s-1 (stale synchronous parallel, Ho et al., NIPS 2013, with clocks of parts). Clocks belong to parts and not to
workers, so that a worker's death stops no clock: another worker trains the part's next mini-batch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ticks:
    """The mini-batches of every pass of a run, a pure function of these numbers."""

    vertices: int  #: positions in a pass
    parts: int  #: from 1 to `vertices`
    count: int  #: mini-batches of each part in a pass; each has at least one vertex

    @staticmethod
    def of(vertices: int, parts: int, size: int) -> Ticks:
        """Return the ticks of `vertices` in up to `parts` parts, with mini-batches of up to `size` vertices. Where a
        part lacks one vertex of as many mini-batches of one vertex, the larger parts have one mini-batch of two."""
        parts = max(1, min(parts, vertices))
        largest = math.ceil(vertices / parts)
        return Ticks(vertices, parts, max(1, min(math.ceil(largest / size), vertices // parts)))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The position at which each mini-batch ends, int64 (parts * count,): those of part 0, of part 1, and so on."""
        starts = np.arange(self.parts + 1, dtype=np.int64) * self.vertices // self.parts
        steps = np.arange(1, self.count + 1, dtype=np.int64)
        ends: NDArray[np.int64] = (starts[:-1, None] + np.diff(starts)[:, None] * steps // self.count).reshape(-1)
        return ends

    @property
    def borders(self) -> tuple[int, ...]:
        """The positions at which two parts meet."""
        return tuple(self._ends[self.count - 1 : -1 : self.count])

    @property
    def largest(self) -> int:
        """Vertices of the largest mini-batch."""
        return int(np.diff(self.ends, prepend=0).max())

    def place(self, position: int) -> tuple[int, int]:
        """Return (part, tick) of a position in the pass."""
        return divmod(bisect_right(self._ends, position), self.count)

    def stop(self, position: int) -> int:
        """Return the end of the mini-batch that has a position."""
        return self._ends[bisect_right(self._ends, position)]

    @cached_property
    def _ends(self) -> list[int]:
        ends: list[int] = self.ends.tolist()  # bisect on a list takes a tenth of the time of numpy on an array
        return ends

    def clocks(self, uncredited: Iterable[int]) -> list[int]:
        """Return how many mini-batches of each part are complete. `uncredited` are the starts of the ranges that are
        not credited; a part's mini-batches are credited in order, each at once."""
        clocks = [self.count] * self.parts
        for position in uncredited:
            part, tick = self.place(position)
            clocks[part] = min(clocks[part], tick)
        return clocks


def may_begin(clocks: Sequence[int], part: int, tick: int, slack: int) -> tuple[bool, str]:
    """Return (whether a mini-batch may begin, reason). `clocks` are the completed mini-batches of each part."""
    if tick != clocks[part]:
        return False, f"mini-batch {clocks[part] + 1} of part {part + 1} is not complete"
    slowest = min(clocks)
    if tick - slowest > slack:
        behind = clocks.index(slowest)
        return False, f"part {behind + 1} is at mini-batch {slowest + 1}, and slack {slack} lets none be further ahead"
    return True, f"mini-batch {tick + 1} of part {part + 1}, the slowest part is at {slowest + 1}"
