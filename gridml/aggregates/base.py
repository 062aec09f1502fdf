"""What every merge rule is given and must return: the paper's g, one tensor at a time.

A push brings a replica p that a worker trained from base b, an older version of the master value v. A rule turns
(v, b, p) into the next master value. Rules are values without state: what they must remember between pushes are
durable buffers, stored beside the tensor and committed with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]

KAPPA = 5.0
"""Staleness, in pushes, at which a replica has half the weight of a fresh one."""


class Companion(NamedTuple):
    """A second tensor that a rule must see to merge the first, as the three parties hold it; all of one shape."""

    value: Array
    replica: Array
    base: Array


class Merge(NamedTuple):
    """The circumstances of one push, and the tensor of it being merged."""

    version: int
    """Number of the master version merged into."""
    base: int
    """Number of the version the replica was trained from."""
    vertices: int
    """Vertices newly trained by this push (n)."""
    credited_by_others: int
    """Vertices credited to other workers since the base."""
    live: int
    """Live leases."""
    name: str = ""
    """The tensor being merged."""
    companion: Companion | None = None
    """The tensor named by `Aggregate.companion`, where there is one of the same shape."""

    def of(self, name: str, companion: Companion | None = None) -> Merge:
        """The same push, for one of its tensors."""
        return Merge(self.version, self.base, self.vertices, self.credited_by_others, self.live, name, companion)

    @property
    def staleness(self) -> float:
        """τ: how many pushes of this size others had credited since the base."""
        return self.credited_by_others / max(1, self.vertices)

    @property
    def weight(self) -> float:
        """α = κ/(κ+τ), in (0, 1]: the share of the replica in a weighted average; 1 for a fresh one."""
        return KAPPA / (KAPPA + self.staleness)

    @property
    def fast_forward(self) -> bool:
        """Nobody else was credited since the base, so the replica contains all that the master knows."""
        return self.credited_by_others == 0


class Aggregate(ABC):
    """How replicas of one tensor are merged. Abstract; every rule is final, a frozen dataclass of its settings."""

    @abstractmethod
    def merge(
        self,
        value: Array,
        replica: Array,
        base: Array,
        merge: Merge,
        buffers: Tensors,
        out: Array,
        out_buffers: dict[str, Array],
        scale: float,
    ) -> float:
        """Write the merged tensor to `out` and the next buffers to `out_buffers`; return Σ(p−b)².

        `value`, `replica`, `base` and `out` have one shape and dtype; `out` and the arrays of `out_buffers` are
        contiguous, uninitialised, and overlap no input; no input is written. `scale` in (0, 1] shortens a
        floating-point step: the replica is read as b + scale·(p−b). The sum is not scaled. It is finite exactly
        when replica and result are finite (it saturates at the largest float64). It is 0 for integers: counts are
        facts, so they are neither shortened nor part of the norm of a step.
        """

    def buffers(self, value: Array) -> dict[str, Array]:
        """The buffers of a tensor before its first merge; their names do not depend on `value`."""
        return {}

    def flush(self, value: Array, buffers: Tensors, live: int, out: Array, out_buffers: dict[str, Array]) -> bool:
        """At the end of an epoch, bring what the buffers still hold into `out`; False: nothing held or written."""
        return False

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """On the worker, when a reply brings master replica `newest`: keep what was trained since `pushed` left.

        The default rebases: out = newest + (local − pushed). `out` may be `local` itself, no other input.
        """
        np.subtract(local, pushed, out=out)
        np.add(out, newest, out=out)

    def companion(self, name: str) -> str | None:
        """The tensor that must be seen to merge tensor `name`, if any."""
        return None

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether tensors of this dtype can be merged; by default only floating-point: no averages of integers."""
        return dtype.kind == "f"
