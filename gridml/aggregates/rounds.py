"""Rounds: replicas are gathered and averaged together, with momentum on the master.

In the formulas, v is the master's value, b the base of a push (the older master value that the worker trained from), p
the pushed replica, and n the number of vertices that the push trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge, Tensors
from gridml.errors import UsageError

LAST = 0.4
"""Share of a run over which the momentum falls to 0, as learning rates do by default (`gridml.linear_decay`)."""


@final
@dataclass(frozen=True)
class Rounds(Aggregate):
    """Rounds in which all workers push and none waits: their mean step is taken with Nesterov momentum.

        wᵢ = nᵢ/(1+aᵢ)        at the end of a round: D = Σwᵢ(pᵢ−bᵢ)/Σwᵢ, m ← βm + D, v ← v + η(D + βm)

    aᵢ is the age of a push: the number of rounds that ended since its base. The master ends a round when the live
    workers have pushed, or when it has waited for the last ones for long enough (`master.sync.rounds.ends`); what comes
    later counts in the next round. Until a round ends, a worker trains on from its own replica, and takes the master's
    next value with what it has trained meanwhile.

    The mean of W steps in one direction is no longer than one of them; the momentum m makes up for that: steps that
    point the same way for many rounds go η/(1−β) times as far. Towards the end of a run β falls to 0, and η to 1, so
    that the last rounds are plain means. While one worker is alive, its replica is taken as it is, so one worker is
    exactly plain SGD. Where pushes are cheap, the step of a part of one batch is added instead, as by `StaleMean`.

    Algorithm 1 of Douillard et al., "DiLoCo: distributed low-communication training of language models" (arXiv
    2311.08105), with weights as in Decoupled DiLoCo (arXiv 2604.21428), and β falling.

    Raises UsageError unless η > 0 and 0 ≤ β < 1.
    """

    rate: float = 0.7  #: η, the factor of the mean step
    momentum: float = 0.9  #: β
    gathers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.momentum < 1):
            raise UsageError(
                f"rounds got rate={self.rate}, momentum={self.momentum}; expected rate > 0 and momentum in [0, 1)"
            )

    def buffers(self, value: Array) -> dict[str, Array]:
        """`steps`: Σwᵢ(pᵢ−bᵢ) of the open round, at least float32; `weight`: Σwᵢ; `momentum`: m."""
        wide = np.result_type(value.dtype, np.float32)
        return {
            "steps": np.zeros(value.shape, wide),
            "weight": np.zeros((), np.float64),
            "momentum": np.zeros(value.shape, wide),
        }

    def merge(self, t: TensorMerge) -> float:
        held, gathered = t.buffers, t.out_buffers
        if t.merge.fast_forward and t.merge.live <= 1 and not held["weight"]:
            for buffer in gathered.values():
                buffer.fill(0)
            return kernels.fast_forward(t.out, t.base, t.replica, t.scale)
        if t.merge.added:
            for name, buffer in gathered.items():
                np.copyto(buffer, held[name])
            return kernels.blend(t.out, t.value, t.base, t.replica, 0.0, t.scale)
        weight = max(1, t.merge.vertices) / (1 + t.merge.rounds)
        sumsq = kernels.blend(gathered["steps"], held["steps"], t.base, t.replica, 0.0, weight * t.scale)
        gathered["weight"][...] = held["weight"] + weight
        np.copyto(gathered["momentum"], held["momentum"])
        np.copyto(t.out, t.value)
        return sumsq

    def end_round(self, value: Array, buffers: Tensors, share: float) -> bool:
        """At the end of a round, after `share` of the run, apply the gathered steps to `value` and empty their buffers.

        Both are copies to be written in place. Return False if nothing was gathered.
        """
        weight = float(buffers["weight"])
        if not weight:
            return False
        rate, momentum = self.at(share)
        mean, m = buffers["steps"], buffers["momentum"]
        mean /= weight
        m *= momentum
        m += mean
        kernels.shift(mean, mean, m, momentum)
        kernels.shift(value, value, mean, rate)
        mean.fill(0)
        buffers["weight"].fill(0)
        return True

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        return self.end_round(value, buffers, 1.0)

    def at(self, share: float) -> tuple[float, float]:
        """Return (η, β) after `share` of the run."""
        left = min(1.0, (1.0 - share) / LAST)
        return 1.0 + left * (self.rate - 1.0), left * self.momentum
