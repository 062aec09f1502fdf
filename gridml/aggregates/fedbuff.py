"""Buffered asynchronous aggregation: K steps are gathered, then taken together.

    wᵢ = nᵢ(1+τᵢ)^−½        every K pushes: v ← v + ηΣwᵢ(pᵢ−bᵢ)/Σwᵢ        K = max(8, live leases)

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered asynchronous aggregation"
(arXiv 2106.06639), algorithm 1, with its damping (1+τ)^−½. Nothing is lost with a short epoch: the flush takes
what is there.
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
class FedBuff(Aggregate):
    """Server rate η, smallest buffer K; raises UsageError unless η > 0 and K ≥ 1."""

    rate: float = 1.0
    least: int = 8

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.least >= 1):
            raise UsageError(
                f"fedbuff got rate={self.rate}, least={self.least}; expected rate > 0 and least of 1 or more"
            )

    def buffers(self, value: Array) -> dict[str, Array]:
        """`step`: Σwᵢ(pᵢ−bᵢ), at least float32; `weight`: Σwᵢ; `pushes`: how many."""
        step = np.zeros(value.shape, np.result_type(value.dtype, np.float32))
        return {"step": step, "weight": np.zeros((), np.float64), "pushes": np.zeros((), np.int64)}

    def merge(self, t: TensorMerge) -> float:
        weight = max(1, t.merge.vertices) / (1 + t.merge.staleness) ** 0.5
        sumsq = kernels.blend(t.out_buffers["step"], t.buffers["step"], t.base, t.replica, 0.0, weight * t.scale)
        t.out_buffers["weight"][...] = t.buffers["weight"] + weight
        t.out_buffers["pushes"][...] = t.buffers["pushes"] + 1
        if t.out_buffers["pushes"] >= max(self.least, t.merge.live):
            self._take(t.out, t.value, t.out_buffers)
        else:
            np.copyto(t.out, t.value)
        return sumsq

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        if buffers["pushes"] == 0:
            return False
        self._take(value, value, buffers)
        return True

    def _take(self, out: Array, value: Array, buffers: Tensors) -> None:
        """Take the gathered step and empty the buffers, in place."""
        kernels.shift(out, value, buffers["step"], self.rate / float(buffers["weight"]))
        for held in buffers.values():
            held.fill(0)
