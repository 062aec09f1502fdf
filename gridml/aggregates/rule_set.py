"""Rule sets: a merge rule for every tensor of a vertex, and the atomic merge of all its tensors.

The rule of a tensor follows from the program's declaration, the tensor's name and its dtype.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gridml.aggregates.averages import StaleMean
from gridml.aggregates.base import Aggregate, Array, Companion, Contraction, Merge, TensorMerge, Tensors, same_bits
from gridml.aggregates.sums import Maximum, Pooled
from gridml.errors import ProgramError


@dataclass(frozen=True)
class VertexState:
    """The master's state of one vertex."""

    tensors: dict[str, Array] = field(default_factory=dict)  #: by name
    buffers: dict[str, dict[str, Array]] = field(default_factory=dict)  #: by tensor name and the rule's buffer name


class MergeResult(NamedTuple):
    """The result of merging one push into a vertex."""

    state: VertexState
    """The next tensors and buffers; empty if `not_finite` or `objection` is set. An untrained tensor is the master's
    own array, not a copy."""
    sumsqs: Mapping[str, float]
    """Σ(p−b)² of each tensor before `scale`, float64 and saturating; 0 for integers."""
    not_finite: str | None
    """Name of the first tensor with a NaN or an infinity in the replica or in the result."""
    clipped: frozenset[str] = frozenset()
    """Names of the tensors whose step was clipped by the tensor's rule."""
    objection: str | None = None
    """The reason why a rule rejects the push, which exceeds a bound set by the user. Then nothing is merged."""

    @property
    def sumsq(self) -> float:
        """The squared length of the step over all tensors. It saturates at the largest float64, and is not finite only
        if a tensor is not finite."""
        total = sum(self.sumsqs.values())
        return total if self.not_finite is not None else min(total, sys.float_info.max)


_NO_BUFFERS: Tensors = MappingProxyType({})
_NO_CONTRACTIONS: Mapping[str, Contraction] = MappingProxyType({})
_NOTHING = VertexState()


class RuleSet:
    """The rules of a set of tensors, by tensor name."""

    def __init__(self, rules: Mapping[str, Aggregate]) -> None:
        self.rules = dict(rules)
        self._companions = {name: rule.companion(name) for name, rule in self.rules.items()}

    def buffers(self, tensors: Tensors) -> dict[str, dict[str, Array]]:
        """Return the initial buffers, by tensor name, of the tensors that have buffers."""
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

        `scale` in (0, 1] shortens all steps except contributions. `contractions` has, by name, the contractions of
        tensors whose rules use them. Results are written into the arrays of `out`, and into new arrays for tensors that
        `out` lacks. Arrays of `out` are contiguous, have the tensor's shape and dtype, and do not overlap master,
        replica or base. The merge stops at the first tensor that is not finite or that its rule rejects; then the
        content of `out` is undefined. Raises ValueError if `scale` is out of range.
        """
        if not 0 < scale <= 1:
            raise ValueError(f"scale is {scale}; expected a number above 0, at most 1")
        values, spare, merged = master.tensors, out or _NOTHING, VertexState()
        sumsqs: dict[str, float] = {}
        clipped: set[str] = set()
        for name, rule in self.rules.items():
            value = values[name]
            if replica[name] is base[name] is value and name not in master.buffers:
                merged.tensors[name], sumsqs[name] = value, 0.0  # untrained: share the master's array
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
                merged.tensors[name], sumsqs[name] = value, 0.0  # a constant with infinities, such as a mask
                if name in master.buffers:
                    merged.buffers[name] = master.buffers[name]
        return MergeResult(merged, sumsqs, None, frozenset(clipped))

    def flush(self, master: VertexState, live: int, *, gathered: bool = True) -> VertexState | None:
        """At the end of an epoch, return the next values of the tensors whose buffers held steps; None if none did.
        `gathered`: also end the round of rules that gather."""
        wanted = [name for name in master.buffers if gathered or not self.rules[name].gathers]
        return self._applied(master, wanted, lambda rule, value, buffers: rule.flush(value, buffers, live))

    def end_round(self, master: VertexState, share: float) -> VertexState | None:
        """At the end of a round, after `share` of the run, return the next values of the tensors whose rules have
        gathered steps; None if none has."""
        wanted = [name for name in master.buffers if self.rules[name].gathers]
        return self._applied(master, wanted, lambda rule, value, buffers: rule.end_round(value, buffers, share))

    def _applied(
        self, master: VertexState, names: Sequence[str], apply: Callable[[Aggregate, Array, dict[str, Array]], bool]
    ) -> VertexState | None:
        applied = VertexState()
        for name in names:
            value = master.tensors[name].copy()
            next_ = {key: array.copy() for key, array in master.buffers[name].items()}
            if apply(self.rules[name], value, next_):
                applied.buffers[name] = next_
                if not same_bits(value, master.tensors[name]):  # a frozen tensor is not sent again
                    applied.tensors[name] = value
        return applied if applied.buffers else None


def _room(out: Mapping[str, Array], name: str, like: Array) -> Array:
    array = out.get(name)
    return np.empty(like.shape, like.dtype) if array is None else array


def _companion(name: str, value: Array, master: Tensors, replica: Tensors, base: Tensors) -> Companion | None:
    if name not in replica or replica[name].shape != value.shape:
        return None
    return Companion(master[name], replica[name], base[name])


@dataclass(frozen=True)
class ByName:
    """Rules by patterns that match a parameter's name. Made by `by_name`."""

    patterns: tuple[tuple[str, Aggregate], ...]  #: in the order of declaration: the first match wins

    def find(self, name: str) -> tuple[str, Aggregate] | None:
        """Return the first pattern that matches, and its rule."""
        return next(((pattern, rule) for pattern, rule in self.patterns if fnmatchcase(name, pattern)), None)


def by_name(rules: Mapping[str, Aggregate]) -> ByName:
    """Choose rules by the parameter's name, as in `by_name({"*.bias": mean(), "*": stale_mean()})`.

    Patterns are shell patterns (`*`, `?`, `[ab]`) and case-sensitive. The first match wins; names that no pattern
    matches get `stale_mean`. Raises ProgramError if a value is not a rule.
    """
    for pattern, rule in rules.items():
        if not isinstance(rule, Aggregate):
            raise ProgramError(
                f"by_name got {rule!r} for pattern {pattern!r}; expected a rule, such as gridml.stale_mean()"
            )
    return ByName(tuple(rules.items()))


def rule_for(name: str, array: Array, declared: Aggregate | ByName | None) -> Aggregate:
    """Return the rule for the tensor `name` with the dtype of `array`.

    The rule of a pattern applies if the pattern spells out the last part of the name, as `*.running_var` does and
    `*.bn.*` does not. Otherwise BatchNorm statistics are pooled. Integers and truth values get the maximum, unless the
    declared rule can merge them, as `add` can. All other tensors get the declared rule, by default `stale_mean`. Raises
    ProgramError if the rule cannot merge the dtype.
    """
    pattern, rule = _declared_for(name, declared)
    if not _names_tensor(pattern, name):
        if array.dtype.kind == "f" and is_statistic(name):
            return Pooled(variance=name.endswith("var"))
        if array.dtype.kind in "iub" and not rule.takes(array.dtype):
            return Maximum()
    if not rule.takes(array.dtype):
        raise ProgramError(
            f"tensor {name!r} has dtype {array.dtype}, which {rule!r} cannot merge; "
            "expected a floating-point dtype, or for integers add() or maximum(), chosen with gridml.by_name"
        )
    return rule


def is_chosen(name: str, array: Array, declared: Aggregate | ByName | None) -> bool:
    """Return True if the program chose the rule of this tensor explicitly: by a pattern that spells out the last part
    of the name, or by declaring a rule for contributions (`add`, `maximum`), which no trained tensor gets by default.
    """
    pattern, rule = _declared_for(name, declared)
    return _names_tensor(pattern, name) or (rule.is_contribution and rule.takes(array.dtype))


def is_weight(name: str, array: Array, declared: Aggregate | ByName | None) -> bool:
    """Return True if a module's tensor is floating-point and merged as a weight. Weights can be rounded for transfer
    and averaged over versions; sums, statistics and integers must not be."""
    return array.dtype.kind == "f" and rule_for(name, array, declared).near


def _declared_for(name: str, declared: Aggregate | ByName | None) -> tuple[str, Aggregate]:
    """Return the pattern that matches a tensor's name, and its rule."""
    if isinstance(declared, ByName):
        return declared.find(name) or ("*", StaleMean())
    return "*", declared if declared is not None else StaleMean()


def _names_tensor(pattern: str, name: str) -> bool:
    """Return True if a pattern spells out the last part of the tensor's name, which is its name within the layer."""
    return _last(pattern) == _last(name)


def _last(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[2]


def is_statistic(name: str) -> bool:
    """Return True if a module's tensor is a running mean or variance. Array fields can use these names for anything."""
    inside = name.count("/") != 1  # "Type/field" is an array field, "Type/0/field/parameter" is in a module
    return inside and _last(name) in ("running_mean", "running_var")
