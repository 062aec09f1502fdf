"""Merge one vertex as a whole: every tensor by its own rule, all of them or none."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gridml.aggregates.base import Aggregate, Array, Companion, Contraction, Merge, TensorMerge, Tensors
from gridml.aggregates.bits import same_bits


@dataclass(frozen=True)
class VertexState:
    """What the master holds of one vertex: its tensors by name, and `buffers[tensor][buffer]` of the merge rules."""

    tensors: dict[str, Array] = field(default_factory=dict)
    buffers: dict[str, dict[str, Array]] = field(default_factory=dict)


class MergeResult(NamedTuple):
    """What one push makes of a vertex."""

    state: VertexState
    """The next value of every tensor and buffer, the very array where value, base and replica are one and the rule
    remembers nothing of it, or are alike and not finite; empty if `not_finite`."""
    sumsqs: Mapping[str, float]
    """Σ(p−b)² of each tensor, float64, saturating, before `scale`; 0 for integers."""
    not_finite: str | None
    """The first tensor that holds NaN or infinity in the replica, or would hold one in the master."""
    clipped: frozenset[str] = frozenset()
    """The tensors of which a rule took less than it would of a shorter step."""
    objection: str | None = None
    """Why the rule of a tensor does not take the push, by a bound of the user's own; then nothing is merged."""

    @property
    def sumsq(self) -> float:
        """Over all tensors, saturating: the squared length of the step. Not finite where a tensor is not."""
        total = sum(self.sumsqs.values())
        return total if self.not_finite is not None else min(total, sys.float_info.max)


_NO_BUFFERS: Tensors = MappingProxyType({})
_NO_CONTRACTIONS: Mapping[str, Contraction] = MappingProxyType({})
_NOTHING = VertexState()


class RuleSet:
    """The rules of a set of tensors, by the tensor's name."""

    def __init__(self, rules: Mapping[str, Aggregate]) -> None:
        self.rules = dict(rules)
        self._companions = {name: rule.companion(name) for name, rule in self.rules.items()}

    def buffers(self, tensors: Tensors) -> dict[str, dict[str, Array]]:
        """Return all buffers as they are before the first merge, of the tensors that have any."""
        made = {name: rule.buffers(tensors[name]) for name, rule in self.rules.items()}
        return {name: buffers for name, buffers in made.items() if buffers}

    def merge(
        self,
        master: VertexState,
        replica: Tensors,
        base: Tensors,
        merge: Merge,
        *,
        scale: float = 1.0,
        contractions: Mapping[str, Contraction] = _NO_CONTRACTIONS,
        out: VertexState | None = None,
    ) -> MergeResult:
        """Merge a replica that has the master's names, shapes and dtypes.

        `scale` in (0, 1] shortens the steps that are no contributions; `contractions` are of the tensors whose rows are
        merged by them. Results are written into the arrays of `out` where it has them (contiguous, of the same shape
        and dtype, and no part of master, replica or base) and into new ones elsewhere. If a tensor is not finite, or a
        rule objects, the rest is left undone, and what `out` holds is meaningless. Raises ValueError if `scale` is
        out of range.
        """
        if not 0 < scale <= 1:
            raise ValueError(f"scale is {scale}; expected a number above 0, at most 1")
        values, spare, merged = master.tensors, out or _NOTHING, VertexState()
        sumsqs: dict[str, float] = {}
        clipped: set[str] = set()
        for name, rule in self.rules.items():
            value = values[name]
            if replica[name] is base[name] is value and name not in master.buffers:
                merged.tensors[name], sumsqs[name] = value, 0.0  # nobody has trained it: it stays
                continue
            target = merged.tensors[name] = _room(spare.tensors, name, value)
            buffers = next_buffers = _NO_BUFFERS
            if name in master.buffers:
                buffers, room = master.buffers[name], spare.buffers.get(name, _NO_BUFFERS)
                merged.buffers[name] = {key: _room(room, key, array) for key, array in buffers.items()}
                next_buffers = merged.buffers[name]
            other = self._companions[name]
            companion = None if other is None else _companion(other, value, values, replica, base)
            arrays = value, replica[name], base[name], target
            others = buffers, next_buffers, companion, contractions.get(name)
            tensor = TensorMerge(*arrays, merge, rule.scale_of(scale), *others, clipped=partial(clipped.add, name))
            objection = rule.objection(tensor)
            if objection is not None:
                return MergeResult(VertexState(), sumsqs, None, objection=f"{name}: {objection}")
            sumsq = sumsqs[name] = rule.merge(tensor)
            if not math.isfinite(sumsq):
                if not (same_bits(replica[name], base[name]) and same_bits(base[name], value)):
                    return MergeResult(VertexState(), sumsqs, name)
                merged.tensors[name], sumsqs[name] = value, 0.0  # a constant that holds infinities, as a mask does
                if name in master.buffers:
                    merged.buffers[name] = master.buffers[name]
        return MergeResult(merged, sumsqs, None, frozenset(clipped))

    def flush(self, master: VertexState, live: int) -> VertexState | None:
        """Return, at the end of an epoch, the next values of the tensors and buffers whose rules held something."""
        flushed = VertexState()
        for name, buffers in master.buffers.items():
            value = master.tensors[name].copy()
            next_ = {key: array.copy() for key, array in buffers.items()}
            if self.rules[name].flush(value, next_, live):
                flushed.tensors[name], flushed.buffers[name] = value, next_
        return flushed if flushed.tensors else None


def _room(out: Mapping[str, Array], name: str, like: Array) -> Array:
    array = out.get(name)
    return np.empty(like.shape, like.dtype) if array is None else array


def _companion(name: str, value: Array, master: Tensors, replica: Tensors, base: Tensors) -> Companion | None:
    if name not in replica or replica[name].shape != value.shape:
        return None
    return Companion(master[name], replica[name], base[name])
