"""Merge rules for counts and statistics: the sum, the maximum, the master's own value, and BatchNorm's pooled
statistics."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge
from gridml.errors import UsageError


@final
@dataclass(frozen=True)
class Add(Aggregate):
    """The sum of all workers' changes, v ← v + (p−b), for counts and sufficient statistics.

    A push is a contribution, so it is merged whole, however large. Sums of integers are exact in any order of arrival
    (modulo 2^bits, like all machine integers). Floating-point sums are exact as long as the numbers are whole and the
    sums stay below 2^53 (float64) or 2^24 (float32). Both hold because the master merges every push exactly once. Steps
    of weights can be added, too; then W workers move the weights W times as far as one worker.

    Raises UsageError unless `bound` is above 0.
    """

    near: ClassVar[bool] = False
    is_contribution: ClassVar[bool] = True

    bound: float = math.inf
    """Maximum that one vertex may add to an element, or subtract from it. A push of n vertices that changes an element
    by more than n·bound is rejected as a whole, with a failure that gives this reason. By default there is no bound."""

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
        """Return a message with the largest change, if that exceeds the bound."""
        if math.isinf(self.bound) or not t.replica.size:
            return None
        allowed, vertices, rounding = self.bound * max(1, t.merge.vertices), t.merge.vertices, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            change = t.replica - t.base
            # Differences of unsigned integers wrap. Read as signed numbers, they are the shorter way around.
            if change.dtype.kind == "u":
                change = change.view(f"i{change.itemsize}")
            largest = float(np.abs(change.astype(np.float64)).max())
            if change.dtype.kind == "f":  # allow for rounding, because the change sums one rounded term for each vertex
                reach = max(float(np.abs(each).max()) for each in (t.replica, t.base))
                rounding = (64 + vertices) * float(np.finfo(change.dtype).eps) * reach
        if not largest > allowed + rounding:  # false for NaN, which the merge reports
            return None
        return f"{vertices:,} vertices change an element by {largest:.9g}, and {self!r} allows {allowed:.9g}"

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in "fiu"


@final
@dataclass(frozen=True)
class Maximum(Aggregate):
    """The element-wise maximum, v ← max(v, p), for integers that only grow, such as BatchNorm's `num_batches_tracked`.

    An average of integers need not be an integer, and a sum would count several times what several workers counted.
    For truth values the maximum is "or". The maximum is idempotent and independent of the order of pushes. A push is a
    contribution, so it is merged whole.
    """

    near: ClassVar[bool] = False
    is_contribution: ClassVar[bool] = True

    def merge(self, t: TensorMerge) -> float:
        if t.out.dtype.kind == "f":
            sumsq = kernels.fast_forward(t.out, t.base, t.replica, t.scale)
            np.maximum(t.value, t.out, out=t.out)
            return sumsq
        np.maximum(t.value, t.replica, out=t.out)
        return 0.0

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """out = max(local, newest)."""
        np.maximum(local, newest, out=out)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in "fiub"


@final
@dataclass(frozen=True)
class Owned(Aggregate):
    """The master's own value, v ← v, for what only the master changes, such as a rate that `gridml.global_sync` lowers.

    Workers read it. What they push of it is dropped; a push with NaN or infinity is refused like any other.
    """

    near: ClassVar[bool] = False
    is_contribution: ClassVar[bool] = True

    def merge(self, t: TensorMerge) -> float:
        np.copyto(t.out, t.value)
        return 0.0 if t.out.dtype.kind != "f" else kernels.fast_forward(np.empty_like(t.out), t.base, t.replica, 1.0)

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """out = newest."""
        np.copyto(out, newest)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in "fiub"


@final
@dataclass(frozen=True)
class Pooled(Aggregate):
    """BatchNorm's running statistics, merged as if one set of samples had been seen: variances are pooled.

        μ' = (1−α)μᵥ + αμₚ        σ'² = E[σ²+μ²] − μ'² = (1−α)σᵥ² + ασₚ² + α(1−α)(μₚ−μᵥ)²        α = κ/(κ+τ), κ = 5

    Index v is the master's value and index p the pushed replica. The last form needs no difference of large squares and
    is never negative. An average of the variances alone would ignore the distance between the means. The companion of
    `running_var` is `running_mean` of the same layer; without it the means count as equal.
    """

    near: ClassVar[bool] = False
    variance: bool = False  #: True for a running variance, False for a running mean

    def merge(self, t: TensorMerge) -> float:
        if t.merge.fast_forward:
            return kernels.fast_forward(t.out, t.base, t.replica, t.scale)
        alpha = t.merge.weight
        sumsq = kernels.blend(t.out, t.value, t.base, t.replica, alpha, alpha * t.scale)
        if t.companion is None or not math.isfinite(sumsq):
            return sumsq
        mean, its_replica, its_base = (array.astype(np.float64) for array in t.companion)
        with np.errstate(all="ignore"):
            between = its_base + t.scale * (its_replica - its_base) - mean
            np.add(t.out, alpha * (1 - alpha) * between * between, out=t.out, casting="same_kind")
        return min(sumsq, sys.float_info.max) if np.isfinite(t.out).all() else math.nan

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """Rebase. If an element of a variance would not stay positive, take the newest value instead."""
        rebased = newest + (local - pushed)
        np.copyto(out, np.where(rebased > 0, rebased, newest) if self.variance else rebased)

    def companion(self, name: str) -> str | None:
        return name.removesuffix("var") + "mean" if self.variance and name.endswith("running_var") else None
