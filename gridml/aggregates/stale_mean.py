"""The default: a mean whose weight falls with staleness.

    τ = vertices credited by others since b, over n        α = κ/(κ+τ)        ρ' = 1 + (ρ−1)(1−α)
    v ← v + α(b−v) + αρ'(p−b)

The first term takes the master part of the way back to the base, the second adds the worker's own step, a little
more of it the staler the push is (at ρ = 1 it is the weighted average of v and p). At τ = 0 it is a fast-forward,
exactly v ← p, so one worker alone is exactly plain SGD. It needs no worker count. κ = 5 and ρ = 2 were the best
of those tried on MNIST with 4 to 256 workers. The weight is the hinge with a = 1/κ, b = 0 of Xie, Koyejo, Gupta,
"Asynchronous federated optimization" (arXiv 1903.03934).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from gridml.aggregates import kernels
from gridml.aggregates.base import KAPPA, Aggregate, Merge, TensorMerge
from gridml.errors import UsageError


@final
@dataclass(frozen=True)
class StaleMean(Aggregate):
    """Weight κ/(κ+τ), overshoot ρ; raises UsageError unless κ > 0 and 1 ≤ ρ ≤ 2."""

    kappa: float = KAPPA
    rho: float = 2.0

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and 1 <= self.rho <= 2):
            raise UsageError(f"stale_mean got kappa={self.kappa}, rho={self.rho}; expected kappa > 0, rho in [1, 2]")

    def merge(self, t: TensorMerge) -> float:
        if t.merge.fast_forward:
            # Not v + (b−v) + (p−b), which rounds: one worker must be plain SGD to the last bit.
            return kernels.fast_forward(t.out, t.base, t.replica, t.scale)
        pull, step = self.weights(t.merge)
        return kernels.blend(t.out, t.value, t.base, t.replica, pull, step * t.scale)

    def weights(self, merge: Merge) -> tuple[float, float]:
        """Return (α, αρ'): how far the master goes back to the base, and how much of the step it takes."""
        alpha = self.kappa / (self.kappa + merge.staleness)
        return alpha, alpha * (1 + (self.rho - 1) * (1 - alpha))
