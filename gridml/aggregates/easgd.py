"""Elastic averaging: a spring between the master and each worker.

    master: v ← v + α(p−v)        worker: θ ← θ − α(p−v)        α = β/live leases, β = 0.9

Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD" (arXiv 1412.6651), equations 5 and 6 and
algorithm 1 (asynchronous). A worker explores: it keeps its own θ and is only pulled towards the master. It sees
the master after its push was merged, so its spring is measured against that newer value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge
from gridml.errors import UsageError


@final
@dataclass(frozen=True)
class Easgd(Aggregate):
    """Elasticity β, shared by the live leases; raises UsageError unless 0 < β ≤ 1."""

    elasticity: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.elasticity <= 1:
            raise UsageError(f"easgd got elasticity={self.elasticity}; expected a number above 0, at most 1")

    def merge(self, t: TensorMerge) -> float:
        alpha = self.elasticity / max(1, t.merge.live)
        return kernels.blend(t.out, t.value, t.base, t.replica, alpha, alpha * t.scale)

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """out = local − α(pushed − newest); `live` is the number of live leases that the reply carries."""
        pull = np.subtract(pushed, newest)
        pull *= self.elasticity / max(1, live)
        np.subtract(local, pull, out=out)
