"""The larger of two: v ← max(v, p).

For integers that only grow and mean "how far", such as BatchNorm's `num_batches_tracked`: an average of integers
is no integer, and a sum would count what each worker counted again. For truth values it is "or". Idempotent, and
the same in any order. A maximum is a contribution: a push is merged whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import Aggregate, Array, TensorMerge


@final
@dataclass(frozen=True)
class Maximum(Aggregate):
    """max(v, p), element by element."""

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
