"""Running statistics of BatchNorm, as if one set of samples had been seen: means averaged, variances pooled.

    μ' = (1−α)μᵥ + αμₚ        σ'² = E[σ²+μ²] − μ'² = (1−α)σᵥ² + ασₚ² + α(1−α)(μₚ−μᵥ)²        α = κ/(κ+τ), κ = 5

The last form needs no difference of large squares and is never negative. Averaging variances alone would forget
how far apart the means were. `running_var` sees `running_mean` of the same layer as its companion; without one
the means count as equal.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge


@final
@dataclass(frozen=True)
class Pooled(Aggregate):
    """A running mean or, with `variance`, a running variance."""

    near: ClassVar[bool] = False
    variance: bool = False

    def merge(self, t: TensorMerge) -> float:
        if t.merge.fast_forward:
            return kernels.fast_forward(t.out, t.base, t.replica, t.scale)
        alpha = t.merge.weight
        sumsq = kernels.blend(t.out, t.value, t.base, t.replica, alpha, alpha * t.scale)
        if t.companion is None or not math.isfinite(sumsq):
            return sumsq
        mean, its_replica, its_base = (array.astype(np.float64) for array in t.companion)
        with np.errstate(all="ignore"):
            apart = its_base + t.scale * (its_replica - its_base) - mean
            np.add(t.out, alpha * (1 - alpha) * apart * apart, out=t.out, casting="same_kind")
        return min(sumsq, sys.float_info.max) if np.isfinite(t.out).all() else math.nan

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """Rebase, except where a variance that fell since the push would not stay above zero: there take the newest."""
        rebased = newest + (local - pushed)
        np.copyto(out, np.where(rebased > 0, rebased, newest) if self.variance else rebased)

    def companion(self, name: str) -> str | None:
        return name.removesuffix("var") + "mean" if self.variance and name.endswith("running_var") else None
