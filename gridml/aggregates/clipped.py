"""Centred clipping: a push moves the master by the step that pushes usually take, and by a bounded one from there.

    u = (p−b)/n        d = u − c        û = c + d·min(1, λR/‖d‖)        c ← c + (û − c)/W
    v ← v + α(b−v) + αρ'·n·û            α, ρ' as in `stale_mean`, W live leases

c, the centre, is a running mean of what was taken per vertex, and R, the radius, a running median of ‖d‖. So however
far and in whatever direction one of W workers pushes, it moves the master by λR per vertex from the centre at most, and
the centre by a W-th of that. Where one worker is live it is `stale_mean`, exactly.

Karimireddy, He, Jaggi, "Learning from history for Byzantine robust optimization" (arXiv 2012.10333), algorithm 2:
v ← v + Σ(mᵢ−v)·min(1, τ/‖mᵢ−v‖)/n, here one push at a time, tensor by tensor, and with the momentum that workers send
there kept as c here. They choose τ by hand; here R follows the median by the geometric update of Andrew, Thakkar,
McMahan, Ramaswamy, "Differentially private learning with adaptive clipping" (arXiv 1905.03871), algorithm 1, γ = 1/2:
R ← R·exp(∓η), down where ‖d‖ ≤ R. One worker's pushes move it by a factor of exp(η) each.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge, Tensors
from gridml.aggregates.stale_mean import StaleMean
from gridml.errors import UsageError

RATE = 0.2  # η


@final
@dataclass(frozen=True)
class Clipped(Aggregate):
    """Clips at `radius` (λ) times the usual distance from the centre; raises UsageError unless λ > 0."""

    radius: float = 1.5

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise UsageError(f"clipped got radius={self.radius}; expected a number above 0")

    def buffers(self, value: Array) -> dict[str, Array]:
        """`centre`: c, at least float32; `radius`: R, 0 before the first push."""
        wide = np.result_type(value.dtype, np.float32)
        return {"centre": np.zeros(value.shape, wide), "radius": np.zeros((), np.float64)}

    def merge(self, t: TensorMerge) -> float:
        centre, known = t.buffers["centre"], float(t.buffers["radius"])
        n, (pull, step) = max(1, t.merge.vertices), StaleMean().weights(t.merge)
        if t.merge.live <= 1:
            for name, held in t.buffers.items():
                np.copyto(t.out_buffers[name], held)
            return StaleMean().merge(t)
        sumsq = kernels.blend(t.out, t.value, t.base, t.replica, pull, 0.0)
        if not math.isfinite(sumsq):
            return sumsq
        with np.errstate(over="ignore"):
            apart = (t.replica - t.base.astype(centre.dtype)) * (t.scale / n) - centre
            limit = np.finfo(centre.dtype).max
            apart = np.asarray(np.clip(apart, -limit, limit))
            distance = min(float(np.sqrt(np.sum(np.square(apart, dtype=np.float64)))), sys.float_info.max)
        factor = min(1.0, self.radius * known / distance) if known and distance else 1.0
        if factor < 1.0:
            t.clipped()
        apart = np.asarray(apart * factor, centre.dtype)
        np.add(centre, apart, out=t.out_buffers["centre"])
        kernels.shift(t.out, t.out, t.out_buffers["centre"], step * n)
        np.add(centre, apart / t.merge.live, out=t.out_buffers["centre"])
        follows = known * math.exp(-RATE if distance <= known else RATE)
        t.out_buffers["radius"][...] = min(follows, sys.float_info.max) if known else distance
        return sumsq

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        """Nothing is held back."""
        return False
