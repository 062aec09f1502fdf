"""Delayed Nesterov momentum on the master.

    Δ = p−b        every push: v ← v + ηΔ/N        every N pushes: m ← βm + mean Δ, v ← v + ηβm        N = live leases

Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato, "Asynchronous local-SGD training for language
modeling" (arXiv 2401.09135), algorithm 3 with c = 0: momentum that is applied at every asynchronous push
accumulates one direction too often, so it is kept back until N pushes have come. η = 0.7 and β = 0.9 are DiLoCo's
(arXiv 2311.08105).

N is read at each push, as workers come and go. At the end of an epoch a period of k < N pushes is closed as the
fraction f = k/N of one: m ← βᶠm + ΣΔ/N, v ← v + ηβfm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge, Tensors
from gridml.errors import UsageError


@final
@dataclass(frozen=True)
class Nesterov(Aggregate):
    """Outer rate η and momentum β; raises UsageError unless η > 0 and 0 ≤ β < 1."""

    rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.momentum < 1):
            raise UsageError(
                f"nesterov got rate={self.rate}, momentum={self.momentum}; expected rate > 0 and momentum in [0, 1)"
            )

    def buffers(self, value: Array) -> dict[str, Array]:
        """`momentum`: m; `steps`: ΣΔ of this period; both at least float32; `pushes`: how many."""
        wide = np.result_type(value.dtype, np.float32)
        return {
            "momentum": np.zeros(value.shape, wide),
            "steps": np.zeros(value.shape, wide),
            "pushes": np.zeros((), np.int64),
        }

    def merge(self, t: TensorMerge) -> float:
        period = max(1, t.merge.live)
        sumsq = kernels.blend(t.out, t.value, t.base, t.replica, 0.0, self.rate * t.scale / period)
        gathered = kernels.blend(t.out_buffers["steps"], t.buffers["steps"], t.base, t.replica, 0.0, t.scale)
        np.copyto(t.out_buffers["momentum"], t.buffers["momentum"])
        t.out_buffers["pushes"][...] = t.buffers["pushes"] + 1
        if np.isfinite(sumsq) and t.out_buffers["pushes"] >= period:
            self._close(t.out, t.out_buffers, int(t.out_buffers["pushes"]))
        return max(sumsq, gathered) if np.isfinite(sumsq) else sumsq

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        if buffers["pushes"] == 0:
            return False
        self._close(value, buffers, max(1, live))
        return True

    def _close(self, value: Array, buffers: Tensors, period: int) -> None:
        """End a period of `period` pushes, or the fraction of one that has come, in place."""
        fraction = min(1.0, int(buffers["pushes"]) / period)
        momentum, steps = buffers["momentum"], buffers["steps"]
        momentum *= self.momentum**fraction
        kernels.shift(momentum, momentum, steps, 1 / max(period, int(buffers["pushes"])))
        kernels.shift(value, value, momentum, self.rate * self.momentum * fraction)
        steps.fill(0)
        buffers["pushes"].fill(0)
