"""The contract of a merge rule: the paper's g, one tensor at a time.

A push brings a replica p that a worker trained from base b, an older version of the master value v. A rule turns
(v, b, p) into the next master value. Rules are immutable and stateless. State that a rule keeps between pushes lives
in durable buffers, which are stored with the tensor and committed with it.
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
"""κ: the staleness, in pushes, at which a replica has half the weight of a fresh replica."""


class Merge(NamedTuple):
    """The circumstances of one push."""

    version: int
    """Number of the master version into which the push is merged."""
    base: int
    """Number of the version from which the replica was trained."""
    vertices: int
    """n: the number of vertices that the push trained."""
    credited_by_others: int
    """Number of vertices credited to other workers since the base."""
    live: int
    """Number of live leases."""
    added: bool = False
    """True: the step of a part of one batch, at a rate at which the steps of all parts add up to that of the batch."""
    rounds: int = 0
    """Number of rounds that ended since the base (`Aggregate.gathers`)."""
    before: int = 0
    """Vertices that earlier pushes of the same worker have brought into the open round."""

    @property
    def staleness(self) -> float:
        """τ: the vertices credited to others since the base, as a number of pushes of this size."""
        return self.credited_by_others / max(1, self.vertices)

    @property
    def weight(self) -> float:
        """α = κ/(κ+τ), in (0, 1]: the weight of the replica in an average; 1 if the replica is fresh."""
        return KAPPA / (KAPPA + self.staleness)

    @property
    def fast_forward(self) -> bool:
        """True if no other worker was credited since the base. Then the replica contains all training that the master
        has."""
        return self.credited_by_others == 0


class Companion(NamedTuple):
    """A second tensor that a rule needs to merge the first. The three arrays have the same shape."""

    value: Array
    replica: Array
    base: Array


class Contraction(NamedTuple):
    """Contractions of a tensor's rows. Each array is float64 (rows,).

    Training multiplies the distance from a row to the optimum of its vertices by e^−x. A contraction is an upper bound
    of x from measurements; the true x is smaller if rows are coupled.
    """

    push: Array
    """x of the push itself."""
    together: Array
    """X: the sum of x over the push and everything credited to others since its base."""


def _ignore() -> None:
    """The default of `TensorMerge.clipped`: clipped steps are not counted."""


class TensorMerge(NamedTuple):
    """One tensor of one push: the arguments of a rule's `merge`.

    `value`, `replica`, `base` and `out` have the same shape and dtype. `out` and the arrays of `out_buffers` are
    contiguous, uninitialised, and do not overlap an input.
    """

    value: Array
    """v: the master's value."""
    replica: Array
    """p: the worker's trained value."""
    base: Array
    """b: the older master value that the worker trained from."""
    out: Array
    """Receives the merged tensor."""
    merge: Merge
    """The circumstances of the push, for this tensor."""
    scale: float = 1.0
    """Factor in (0, 1] that shortens a floating-point step: the rule merges b + scale·(p−b) instead of p."""
    buffers: Tensors = MappingProxyType({})
    """The rule's buffers of the tensor, by the names that `Aggregate.buffers` returned."""
    out_buffers: Tensors = MappingProxyType({})
    """Receives the next values of the buffers, under the same names."""
    companion: Companion | None = None
    """The tensor that `Aggregate.companion` names; None if there is none of the same shape."""
    contraction: Contraction | None = None
    """Contractions of the rows of an array field or an embedding table; None if they were not measured."""
    clipped: Callable[[], None] = _ignore
    """A rule calls this when it clips the step. Clipped pushes are counted."""


class Aggregate(ABC):
    """A rule that merges replicas of one tensor. Abstract; every rule is a final, frozen dataclass of its settings.

    A custom rule only needs `merge`:

        @dataclass(frozen=True)
        class Newest(gridml.Aggregate):
            def merge(self, t):
                t.out[...] = t.base + t.scale * (t.replica - t.base)
                return float(((t.replica - t.base).astype("float64") ** 2).sum())
    """

    near: ClassVar[bool] = True
    """True if a trained replica stays near its base, as weights do. Then a step that is as long as the value itself is
    a fault. False for sums, maxima and statistics, which can start anywhere and move far."""

    is_contribution: ClassVar[bool] = False
    """True if a step is a contribution, such as a count, and not a direction. A contribution is merged whole, however
    large, because half a direction is a cautious step, but half a count is a wrong count. So `scale` is always 1, and a
    worker is not judged by the length of such a step."""

    minds_contraction: ClassVar[bool] = False
    """True if `merge` uses the contractions of rows. Contractions are measured only for such rules."""

    gathers: ClassVar[bool] = False
    """True if pushes are gathered in buffers until the master ends a round (`end_round`). Until then workers keep what
    they pushed (`gridml.caching.master_copy.Unmerged`)."""

    @abstractmethod
    def merge(self, t: TensorMerge) -> float:
        """Write the merged tensor to `t.out` and the next buffers to `t.out_buffers`; return Σ(p−b)².

        Inputs must not be written. The sum ignores `scale`. The sum is finite exactly if the replica and the result are
        finite, and then saturates at the largest float64. For integers the sum is 0: counts are exact, so they are
        never shortened and do not add to the length of a step.
        """

    def scale_of(self, scale: float) -> float:
        """Return the scale of this rule's steps when steps are shortened: 1 for contributions, else `scale`."""
        return 1.0 if self.is_contribution else scale

    def objection(self, t: TensorMerge) -> str | None:
        """Return the reason to reject a push that exceeds a bound set by the user, or None."""
        return None

    def buffers(self, value: Array) -> dict[str, Array]:
        """Return the initial buffers of a tensor, by name. Names must not depend on `value`."""
        return {}

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        """At the end of an epoch, apply the steps that the buffers still hold to `value`.

        `value` and `buffers` are copies to be written in place: they become the master's next value and buffers. `live`
        is the number of live leases. Return False if the buffers held nothing; then the copies are discarded.
        """
        return False

    def end_round(self, value: Array, buffers: Tensors, share: float) -> bool:
        """At the end of a round, after `share` of the run, apply what the buffers hold to `value`, if the rule
        `gathers`. As in `flush`, both are copies to be written in place; return False if the buffers held nothing."""
        return False

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """On the worker, adopt the master's value `newest` from a reply, and keep the training since `pushed` was sent.

        By default out = newest + (local − pushed). `out` can be the array `local`, but no other input.
        """
        np.subtract(local, pushed, out=out)
        np.add(out, newest, out=out)

    def companion(self, name: str) -> str | None:
        """Return the name of the companion tensor that the rule needs to merge tensor `name`; None if it needs none."""
        return None

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Return True if the rule can merge this dtype. By default floating-point only: integers have no average."""
        return dtype.kind == "f"


_BLOCK = 1 << 20  # bytes compared at once: trained tensors differ in the first block, so the rest is not read


def same_bits(one: Array, other: Array) -> bool:
    """Return True if two arrays have the same shape, dtype and bytes. Unlike with ==, NaN equals NaN of the same bits,
    and 0 differs from −0."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    left, right = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    blocks = (slice(start, start + _BLOCK) for start in range(0, left.size, _BLOCK))
    return all(np.array_equal(left[block], right[block]) for block in blocks)
