"""Mutation tests of the checks of merge rules: each kind of broken rule is detected by its law."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, TensorMerge, add, fedbuff, maximum, stale_mean
from gridml.testing import aggregates
from gridml.testing.aggregates import CHECKS, FLOAT_CHECKS, check_aggregate
from gridml.testing.contracts import ContractBroken

Array = NDArray[Any]
Arrays = dict[str, Array]


class Rule(Aggregate):
    def __repr__(self) -> str:
        return type(self).__name__


class Sound(Rule):
    """Adds the step; a result that would be infinite is reported by the sum."""

    def merge(self, t: TensorMerge) -> float:
        with np.errstate(all="ignore"):
            t.out[...] = t.value + t.scale * (t.replica - t.base)
        return self.sumsq(t) if np.isfinite(t.out).all() else np.inf

    def sumsq(self, t: TensorMerge) -> float:
        with np.errstate(all="ignore"):
            step = t.replica.astype("f8") - t.base
            total = float((step**2).sum())
        return min(total, sys.float_info.max) if np.isfinite(t.replica).all() else np.inf


class WritesItsInput(Sound):
    def merge(self, t: TensorMerge) -> float:
        total = super().merge(t)
        t.replica[...] = t.value
        return total


class WritesNothing(Sound):
    def merge(self, t: TensorMerge) -> float:
        return self.sumsq(t)


class AddsToWhatWasThere(Sound):
    def merge(self, t: TensorMerge) -> float:
        t.out[...] = np.where(t.out == 1, t.value + 1, t.value)
        return self.sumsq(t)


class SumsNothing(Sound):
    def sumsq(self, t: TensorMerge) -> float:
        return 0.0 if np.isfinite(t.replica).all() else np.inf


class ScalesTheSum(Sound):
    def sumsq(self, t: TensorMerge) -> float:
        return super().sumsq(t) * t.scale**2


class SumsIntegers(Sound):
    def merge(self, t: TensorMerge) -> float:
        t.out[...] = t.value
        return self.sumsq(t)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind == "i"


class IgnoresTheScale(Sound):
    def merge(self, t: TensorMerge) -> float:
        return super().merge(t._replace(scale=1.0))


class TakesNaNForAStep(Sound):
    def merge(self, t: TensorMerge) -> float:
        replica = np.where(np.isfinite(t.replica), t.replica, t.base)
        return super().merge(t._replace(replica=replica))


class LetsTheMasterOverflow(Sound):
    def merge(self, t: TensorMerge) -> float:
        with np.errstate(all="ignore"):
            t.out[...] = t.value + 2 * t.scale * (t.replica - t.base)
        return self.sumsq(t)


class Drifts(Sound):
    def merge(self, t: TensorMerge) -> float:
        total = super().merge(t)
        t.out[...] *= t.out.dtype.type(1.01)
        return total


class RemembersInMemory(Sound):
    """Keeps state outside of buffers, so that it is lost when the master restarts."""

    def merge(self, t: TensorMerge) -> float:
        total = super().merge(t)
        t.out[...] += t.out.dtype.type(next(MERGES) % 3)
        return total


MERGES = itertools.count()


class HoldsForEver(Sound):
    def buffers(self, value: Array) -> Arrays:
        return {"held": np.ones(1, np.float32)}

    def merge(self, t: TensorMerge) -> float:
        t.out_buffers["held"][...] = t.buffers["held"]
        return super().merge(t)

    def flush(self, value: Any, buffers: Any, *_: Any) -> bool:
        return True


class AdoptsTooEarly(Sound):
    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        out[...] = newest
        out += local - pushed


BROKEN: list[tuple[Rule, str]] = [
    (WritesItsInput(), "dtype_and_shape_are_kept_and_inputs_left_alone"),
    (SumsNothing(), "dtype_and_shape_are_kept_and_inputs_left_alone"),
    (SumsIntegers(), "dtype_and_shape_are_kept_and_inputs_left_alone"),
    (AddsToWhatWasThere(), "results_are_written_to_given_arrays"),
    (Drifts(), "untrained_tensors_stay_bit_identical"),
    (HoldsForEver(), "a_flush_empties_the_buffers_and_leaves_inputs_alone"),
    (RemembersInMemory(), "buffers_survive_being_stored"),
    (AdoptsTooEarly(), "adopting_in_place_is_the_same"),
    (TakesNaNForAStep(), "replicas_that_are_not_finite_are_reported"),
    (LetsTheMasterOverflow(), "huge_replicas_never_make_the_master_infinite"),
    (WritesNothing(), "scale_is_the_same_as_a_shorter_step"),
    (IgnoresTheScale(), "scale_is_the_same_as_a_shorter_step"),
    (ScalesTheSum(), "scale_is_the_same_as_a_shorter_step"),
]


@pytest.mark.parametrize("rule", [Sound(), add(), maximum(), fedbuff(), stale_mean()], ids=str)
def test_a_sound_rule_passes(rule: Aggregate) -> None:
    check_aggregate(rule)


@pytest.mark.parametrize(
    ("rule", "law"), BROKEN, ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
def test_a_broken_rule_is_caught_by_the_law_it_breaks(rule: Rule, law: str) -> None:
    (check,) = (check for check in CHECKS + FLOAT_CHECKS if check.__name__ == law)
    with pytest.raises(ContractBroken):
        check(rule, "float64" if rule.takes(np.dtype("f8")) else "int64")
    with pytest.raises(ContractBroken):
        check_aggregate(rule)


def test_every_law_is_run_and_can_fail() -> None:
    functions: list[tuple[str, Callable[..., object]]] = inspect.getmembers(aggregates, inspect.isfunction)
    laws = {name for name, function in functions if [*inspect.signature(function).parameters] == ["rule", "dtype"]}
    assert laws == {check.__name__ for check in CHECKS + FLOAT_CHECKS} == {law for _, law in BROKEN}
