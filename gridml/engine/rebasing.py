"""How a worker brings what the master has into a replica that was trained meanwhile: by the rule of each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, rule_for
from gridml.aggregates.bits import same_bits
from gridml.model.vertex import VertexType

Array = NDArray[Any]


@final
class Rebasing:
    """The rules of the tensors of a program's replicated `types`."""

    def __init__(self, types: Mapping[str, VertexType]) -> None:
        self._types = types
        self._rules: dict[str, Aggregate] = {}

    def merge_in(self, type_name: str, name: str, local: Array, newest: Array, pushed: Array | None, live: int) -> None:
        """Bring `newest` into `local`, by the rule of tensor `name` where work since `pushed` is to be kept."""
        if pushed is None or _is_constant(local, pushed):
            np.copyto(local, newest)
            return
        if name not in self._rules:
            self._rules[name] = rule_for(name, local, self._types[type_name].rule)
        self._rules[name].adopt(local, pushed, newest, local, live)


def _is_constant(local: Array, pushed: Array) -> bool:
    """Whether a tensor holds infinities, as a mask does, and was left alone: it has no differences."""
    with np.errstate(all="ignore"):  # a sum that is not finite says little, and one that is says all
        return local.dtype.kind == "f" and not np.isfinite(local.sum()) and same_bits(local, pushed)
