"""Sum of everybody's changes: v ← v + (p−b).

For counts and sufficient statistics. A push is a contribution, so it is merged whole, however large: integers are exact
in any order of arrival (modulo 2^bits, as differences and sums of machine integers are), and so are floating-point
numbers as long as they are whole and their sums below 2^53 (float64) or 2^24 (float32), given that every push is merged
once, which the master's sequence numbers see to. Steps of weights can be added too: then W workers move W times as far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, TensorMerge
from gridml.errors import UsageError


@final
@dataclass(frozen=True)
class Add(Aggregate):
    """v + (p−b). Raises UsageError unless `bound` is above 0."""

    near: ClassVar[bool] = False
    is_contribution: ClassVar[bool] = True

    bound: float = math.inf
    """The most that one vertex may add to an element, or take from it: a push of n vertices that changes an element by
    more than n times as much is refused as a whole, with a failure that says so. No bound unless it is given."""

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not isinstance(self.bound, int | float) or not self.bound > 0:
            raise UsageError(
                f"add got bound={self.bound!r}; expected a number above 0, the most that one vertex may add"
            )

    def merge(self, t: TensorMerge) -> float:
        if t.out.dtype.kind == "f":
            return kernels.blend(t.out, t.value, t.base, t.replica, 0.0, t.scale)
        np.subtract(t.replica, t.base, out=t.out)
        np.add(t.out, t.value, out=t.out)
        return 0.0

    def objection(self, t: TensorMerge) -> str | None:
        """Say which change is the largest where it is beyond the bound. Differences of integers wrap, as their sums do:
        the smaller of the two ways round counts."""
        if math.isinf(self.bound) or not t.replica.size:
            return None
        allowed, vertices, rounding = self.bound * max(1, t.merge.vertices), t.merge.vertices, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            change = t.replica - t.base
            if change.dtype.kind == "u":
                change = change.view(f"i{change.itemsize}")
            largest = float(np.abs(change.astype(np.float64)).max())
            if change.dtype.kind == "f":  # what is at the bound is a sum of so many terms, each of them rounded
                reach = max(float(np.abs(each).max()) for each in (t.replica, t.base))
                rounding = (64 + vertices) * float(np.finfo(change.dtype).eps) * reach
        if not largest > allowed + rounding:  # NaN is reported by the merge
            return None
        return f"{vertices:,} vertices change an element by {largest:.9g}, and {self!r} allows {allowed:.9g}"

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in "fiu"
