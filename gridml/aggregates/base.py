"""The contract of a merge rule: the paper's g, one tensor at a time.

A push brings a replica p that a worker trained from base b, an older version of the master value v. A rule turns
(v, b, p) into the next master value. Rules are values without state: what they must remember between pushes are
durable buffers, stored beside the tensor and committed with it. `same_bits` says whether two tensors are the same,
whatever they hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]

KAPPA = 5.0
"""Staleness, in pushes, at which a replica has half the weight of a fresh one."""


class Merge(NamedTuple):
    """The circumstances of one push."""

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


class Companion(NamedTuple):
    """A second tensor that a rule must see to merge the first, as the three parties hold it; all of one shape."""

    value: Array
    replica: Array
    base: Array


class Contraction(NamedTuple):
    """How strongly rows are pulled, float64 (rows,) each: e^−x of a row's distance to where its vertices pull it is
    left, or more, with the rows that it is coupled with; bounded from above by what was measured."""

    push: Array
    """x of the push."""
    together: Array
    """x of the push and of all that others had credited since its base."""


def _ignore() -> None:
    """Nobody asked whether a step was clipped."""


class TensorMerge(NamedTuple):
    """One tensor of one push, as a rule sees it.

    `value`, `replica`, `base` and `out` have one shape and dtype. `out` and the arrays of `out_buffers` are contiguous,
    uninitialised, and overlap no input.
    """

    value: Array
    """v: the master's."""
    replica: Array
    """p: what the worker trained."""
    base: Array
    """b: the older version of the master's that the worker trained from."""
    out: Array
    """Where the merged tensor goes."""
    merge: Merge
    """The circumstances of the push, for this tensor."""
    scale: float = 1.0
    """In (0, 1]; shortens a floating-point step: the replica is read as b + scale·(p−b)."""
    buffers: Tensors = MappingProxyType({})
    """What the rule remembers of the tensor, by the names that `Aggregate.buffers` gave."""
    out_buffers: Tensors = MappingProxyType({})
    """Where its next values go, under the same names."""
    companion: Companion | None = None
    """The tensor named by `Aggregate.companion`, where there is one of the same shape."""
    contraction: Contraction | None = None
    """How strongly the rows of an array field, or of a table of embeddings, are pulled, where that is known."""
    clipped: Callable[[], None] = _ignore
    """Called by a rule that takes less of the step than it would of a shorter one: such pushes are counted."""


class Aggregate(ABC):
    """How replicas of one tensor are merged. Abstract; every rule is final, a frozen dataclass of its settings.

    A rule of one's own needs `merge` alone, as in

        @dataclass(frozen=True)
        class Newest(gridml.Aggregate):
            def merge(self, t):
                t.out[...] = t.base + t.scale * (t.replica - t.base)
                return float(((t.replica - t.base).astype("float64") ** 2).sum())
    """

    near: ClassVar[bool] = True
    """Whether a replica stays near the value that it was trained from: a step as long as that value is an accident. Not
    so for sums, maxima and statistics, which begin anywhere and may move far."""

    is_contribution: ClassVar[bool] = False
    """Whether a step is a contribution, such as a count, and not a direction: half of it is wrong, not cautious. A push
    is merged whole then, whatever its length: `scale` is always 1, and the step is no measure of its worker."""

    minds_contraction: ClassVar[bool] = False
    """Whether rows are merged by how strongly they are pulled: it is measured for rules that ask for it."""

    @abstractmethod
    def merge(self, t: TensorMerge) -> float:
        """Write the merged tensor to `t.out` and the next buffers to `t.out_buffers`; return Σ(p−b)².

        No input is written. The sum is not scaled. It is finite exactly when replica and result are finite (it
        saturates at the largest float64). It is 0 for integers: counts are facts, so they are neither shortened nor
        part of the norm of a step.
        """

    def scale_of(self, scale: float) -> float:
        """Return the scale that a step is merged with where others are shortened to `scale`: contributions are not."""
        return 1.0 if self.is_contribution else scale

    def objection(self, t: TensorMerge) -> str | None:
        """Return why a push may not be merged, by a bound of the user's own; None where it may."""
        return None

    def buffers(self, value: Array) -> dict[str, Array]:
        """Return the buffers of a tensor before its first merge; their names do not depend on `value`."""
        return {}

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        """At the end of an epoch, bring what the buffers still hold into `value`.

        Both are copies, written in place: `value` becomes the master's next, `buffers` what is remembered from then
        on. `live` is the number of live leases. Return False where nothing was held; then neither is used.
        """
        return False

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """On the worker, when a reply brings master replica `newest`: keep what was trained since `pushed` left.

        The default rebases: out = newest + (local − pushed). `out` may be `local` itself, no other input.
        """
        np.subtract(local, pushed, out=out)
        np.add(out, newest, out=out)

    def companion(self, name: str) -> str | None:
        """Return the name of the tensor that must be seen to merge tensor `name`, if any."""
        return None

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Say whether tensors of this dtype can be merged; by default only floating-point: no averages of integers."""
        return dtype.kind == "f"


_BLOCK = 1 << 20  # bytes compared at once: what was trained differs in the first


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays have one shape and dtype and the same bytes."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    left, right = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    blocks = (slice(start, start + _BLOCK) for start in range(0, left.size, _BLOCK))
    return all(np.array_equal(left[block], right[block]) for block in blocks)
