"""Sum of everybody's changes: v ← v + (p−b).

For counts and sufficient statistics. Integers are exact in any order of arrival (modulo 2^bits, as differences
and sums of machine integers are), given that every push is merged once, which the master's sequence numbers see
to. Floating-point steps can be added too: then staleness is ignored and W workers move W times as far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, TensorMerge


@final
@dataclass(frozen=True)
class Add(Aggregate):
    """v + (p−b)."""

    near: ClassVar[bool] = False

    def merge(self, t: TensorMerge) -> float:
        if t.out.dtype.kind == "f":
            return kernels.blend(t.out, t.value, t.base, t.replica, 0.0, t.scale)
        np.subtract(t.replica, t.base, out=t.out)
        np.add(t.out, t.value, out=t.out)
        return 0.0

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in "fiu"
