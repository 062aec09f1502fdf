"""Merge one push as a whole: every tensor by its own rule, all of them or none."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gridml.aggregates.base import Aggregate, Array, Companion, Merge, Tensors
from gridml.errors import ProgramError


class MergeResult(NamedTuple):
    """What one push makes of the master."""

    tensors: dict[str, Array]
    """The next value of every tensor and buffer; empty if `not_finite`."""
    sumsq: float
    """Σ(p−b)² over all floating-point tensors, float64, saturating: the squared length of the step, before `scale`."""
    not_finite: str | None
    """The first tensor that holds NaN or infinity in the replica, or would hold one in the master."""


class MergePlan:
    """The rules of a set of tensors, and the names of their durable buffers: `<tensor>#<buffer>`."""

    def __init__(self, rules: Mapping[str, Aggregate]) -> None:
        """`rules`: tensor name to rule. Raises ProgramError if a name contains `#`, which separates buffers."""
        marked = next((name for name in rules if "#" in name), None)
        if marked is not None:
            raise ProgramError(f"tensor {marked!r} has '#' in its name, which marks buffers of merge rules; rename it")
        self.rules = dict(rules)
        nothing = np.empty(0, np.float32)
        self._buffers = {name: tuple(rule.buffers(nothing)) for name, rule in self.rules.items()}
        self._companions = {name: rule.companion(name) for name, rule in self.rules.items()}

    def buffers(self, master: Tensors) -> dict[str, Array]:
        """All buffers as they are before the first merge, to be stored beside the tensors of `master`."""
        return {
            f"{name}#{buffer}": array
            for name, rule in self.rules.items()
            for buffer, array in rule.buffers(master[name]).items()
        }

    def check(self, master: Tensors, replica: Tensors) -> str | None:
        """Why `replica` is none of `master` (a name missing or unknown, another shape or dtype), or None if it is."""
        for name in self.rules:
            if name not in replica:
                return f"the replica lacks tensor {name!r}; expected all {len(self.rules)} tensors of the master"
            got, expected = replica[name], master[name]
            if got.shape != expected.shape:
                return f"tensor {name!r} of the replica has shape {got.shape}; expected {expected.shape}"
            if got.dtype != expected.dtype:
                return f"tensor {name!r} of the replica has dtype {got.dtype}; expected {expected.dtype}"
        unknown = next((name for name in replica if name not in self.rules), None)
        if unknown is not None:
            return f"the replica has tensor {unknown!r}, which the master has not; expected only the master's tensors"
        return None

    def merge(
        self,
        master: Tensors,
        replica: Tensors,
        base: Tensors,
        merge: Merge,
        *,
        scale: float = 1.0,
        out: Mapping[str, Array] | None = None,
    ) -> MergeResult:
        """Merge a replica that has passed `check`.

        `master` holds tensors and buffers, `replica` and `base` at least the tensors. `scale` in (0, 1] shortens
        the step. Results are written into the arrays of `out` where it has them (contiguous, of the same shape
        and dtype, and no part of master, replica or base) and into new ones elsewhere. If a tensor is not finite
        the rest is left undone, and what `out` holds is meaningless. Raises ValueError if `scale` is out of
        range.
        """
        if not 0 < scale <= 1:
            raise ValueError(f"scale is {scale}; expected a number above 0, at most 1")
        room = {} if out is None else out
        tensors: dict[str, Array] = {}
        total = 0.0
        for name, rule in self.rules.items():
            value = master[name]
            target = tensors[name] = _room(room, name, value)
            held: dict[str, Array] = {}
            targets: dict[str, Array] = {}
            for key in self._buffers[name]:
                stored = f"{name}#{key}"
                held[key] = master[stored]
                targets[key] = tensors[stored] = _room(room, stored, held[key])
            other = self._companions[name]
            now = merge.of(name, None if other is None else _companion(other, value, master, replica, base))
            sumsq = rule.merge(value, replica[name], base[name], now, held, target, targets, scale)
            if not math.isfinite(sumsq):
                return MergeResult({}, sumsq, name)
            total += sumsq
        return MergeResult(tensors, min(total, sys.float_info.max), None)

    def flush(self, master: Tensors, live: int) -> dict[str, Array] | None:
        """At the end of an epoch: next values of the tensors and buffers whose rules still held something, or None."""
        flushed: dict[str, Array] = {}
        for name, rule in self.rules.items():
            held = {key: master[f"{name}#{key}"] for key in self._buffers[name]}
            target, targets = _room({}, name, master[name]), {key: _room({}, key, held[key]) for key in held}
            if rule.flush(master[name], held, live, target, targets):
                flushed[name] = target
                flushed.update((f"{name}#{key}", array) for key, array in targets.items())
        return flushed or None


def _room(out: Mapping[str, Array], name: str, like: Array) -> Array:
    array = out.get(name)
    return np.empty(like.shape, like.dtype) if array is None else array


def _companion(name: str, value: Array, master: Tensors, replica: Tensors, base: Tensors) -> Companion | None:
    if name not in replica or replica[name].shape != value.shape:
        return None
    return Companion(master[name], replica[name], base[name])
