"""The paper's rule as printed: v ← (v + p)/2.

It gives half the weight to whoever comes last, so that about three replicas count however many workers there are,
and one worker alone is not plain SGD. Kept as the baseline; `stale_mean` is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, TensorMerge


@final
@dataclass(frozen=True)
class Mean(Aggregate):
    """(v + p)/2, whatever the staleness."""

    def merge(self, t: TensorMerge) -> float:
        return kernels.blend(t.out, t.value, t.base, t.replica, 0.5, 0.5 * t.scale)
