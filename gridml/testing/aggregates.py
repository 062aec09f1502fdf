"""Contract checks for merge rules (`gridml.Aggregate`).

    def test_my_rule():
        check_aggregate(MyRule())

Each function in `CHECKS` and `FLOAT_CHECKS` checks one law for a rule and a dtype, and raises ContractBroken. A test
parametrised with them names the law that fails. v, p and b are the master's value, the replica and the replica's base.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, Merge, RuleSet, VertexState
from gridml.testing.contracts import expect, require

Arrays = dict[str, NDArray[Any]]

DTYPES = ("float16", "float32", "float64", "int64", "uint8", "bool")
TOLERANCE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}  # relative; covers one rounded operation and a sum
FRESH = Merge(version=9, base=9, vertices=64, credited_by_others=0, live=1)  # the only worker, on the newest version
STALE = Merge(version=9, base=4, vertices=64, credited_by_others=192, live=3)  # five versions old; two other workers
NAMES = ("w.running_mean", "w.running_var", "scalar", "none")  # a rule can read a running mean to merge the variance
SHAPES = ((3, 5), (3, 5), (), (0, 2))  # shapes of NAMES: two matrices, a scalar, and a tensor without elements


class FlatResult(NamedTuple):
    """A merge result with tensors and buffers in one dictionary."""

    tensors: Arrays
    sumsq: float  #: sum of squares of the step p - b, over float tensors
    not_finite: str | None  #: a tensor with NaN or infinity; None: all are finite


class FlatRules:
    """Adapter of a RuleSet that takes and returns tensors and buffers in one dictionary, with buffers named
    "tensor#buffer", so that results can be compared array by array."""

    def __init__(self, rules: Mapping[str, Aggregate]) -> None:
        self.rules = dict(rules)
        self._set = RuleSet(rules)

    def buffers(self, master: Arrays) -> Arrays:
        return _flat(VertexState({}, self._set.buffers(master)))

    def merge(
        self,
        master: Arrays,
        replica: Arrays,
        base: Arrays,
        merge: Merge,
        *,
        scale: float = 1.0,
        out: Arrays | None = None,
    ) -> FlatResult:
        room = None if out is None else _nested(out)
        result = self._set.merge(_nested(master), replica, base, merge, scale=scale, out=room)
        return FlatResult(_flat(result.state), result.sumsq, result.not_finite)

    def flush(self, master: Arrays, live: int) -> Arrays | None:
        flushed = self._set.flush(_nested(master), live)
        return None if flushed is None else _flat(flushed)


class Case(NamedTuple):
    """One push to merge."""

    rules: FlatRules
    master: Arrays  #: v, with buffers
    replica: Arrays  #: p
    base: Arrays  #: b, the version that the replica was trained from


def make_case(rule: Aggregate, dtype: str, seed: int = 0) -> Case:
    """Return a push of small tensors, all merged by `rule`. Floats are between 0.5 and 1.5, integers below 9."""
    numbers = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    # Values of one magnitude keep the rounding error of a merge within TOLERANCE, and integer sums within uint8.

    def draw(shape: tuple[int, ...]) -> NDArray[Any]:
        drawn = numbers.random(shape) + 0.5 if kind == "f" else numbers.integers(0, 2 if kind == "b" else 9, shape)
        return np.asarray(drawn).astype(dtype)

    def party() -> Arrays:
        return {name: draw(shape) for name, shape in zip(NAMES, SHAPES, strict=True)}

    master, replica, base = party(), party(), party()
    rules = FlatRules(dict.fromkeys(NAMES, rule))
    return Case(rules, master | rules.buffers(master), replica, base)


def check_aggregate(rule: Aggregate) -> None:
    """Run all checks for every dtype that `rule` accepts. Raises ContractBroken."""
    for dtype in DTYPES:
        if rule.takes(np.dtype(dtype)):
            for check in CHECKS + (FLOAT_CHECKS if dtype in TOLERANCE else ()):
                check(rule, dtype)


def copied(tensors: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return copies of tensors."""
    return {name: array.copy() for name, array in tensors.items()}


def same(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether two sets of tensors are bit-identical."""
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def squared_distance(left: Arrays, right: Arrays) -> float:
    """Return the sum of squared differences of the tensors of `left`."""
    return float(sum(((left[name].astype("f8") - right[name]) ** 2).sum() for name in left))


def dtype_and_shape_are_kept_and_inputs_left_alone(rule: Aggregate, dtype: str) -> None:
    """dtypes and shapes are kept, the result shares no memory with an input, inputs are not written, and the sum of
    squares is that of the step."""
    for merge in (FRESH, STALE):
        rules, master, replica, base = make_case(rule, dtype)
        inputs = [copied(party) for party in (master, replica, base)]
        result = rules.merge(master, replica, base, merge)
        expect(result.not_finite, None, "a merge of finite tensors is finite")
        expect(result.tensors.keys(), master.keys(), "a merge gives every tensor and buffer")
        for name, array in result.tensors.items():
            got, expected = (array.dtype, array.shape), (master[name].dtype, master[name].shape)
            expect(got, expected, f"dtype and shape of {name} are kept")
            parties = [party[name] for party in (master, replica, base) if name in party]
            shared = any(np.shares_memory(array, other) for other in parties)
            require(not shared, f"the result of {name} shares no memory with an input")
        for before, after in zip(inputs, (master, replica, base), strict=True):
            require(same(before, after), "no input of a merge is written")
        # Only steps of floats count in the sum of squares.
        _expect_sum(
            result.sumsq, squared_distance(replica, base) if dtype in TOLERANCE else 0.0, TOLERANCE.get(dtype, 0)
        )


def results_are_written_to_given_arrays(rule: Aggregate, dtype: str) -> None:
    """A merge writes into the arrays of `out`, whose earlier content has no influence."""
    rules, master, replica, base = make_case(rule, dtype)
    fresh = rules.merge(master, replica, base, STALE).tensors
    room = {name: np.full_like(array, 1) for name, array in master.items()}  # zeros would hide a rule that adds to them
    result = rules.merge(master, replica, base, STALE, out=room)
    for name in master:
        require(result.tensors[name] is room[name], f"the result of {name} is written to the given array")
    require(same(result.tensors, fresh), "a merge does not depend on the earlier content of the given arrays")


def untrained_tensors_stay_bit_identical(rule: Aggregate, dtype: str) -> None:
    """A replica equal to its base leaves the master's value unchanged, at any staleness."""
    rules, master, _, _ = make_case(rule, dtype)
    frozen = {name: master[name] for name in NAMES}
    # Many merges at different weights, so that their rounding errors would add up and become visible.
    for credited_by_others in range(0, 900, 37):
        result = rules.merge(master, copied(frozen), copied(frozen), Merge(2, 1, 64, credited_by_others, 5))
        expect(result.sumsq, 0.0, "the sum of squares of no step")
        for name, value in frozen.items():
            law = f"{name}, which was not trained, stays bit-identical"
            expect(result.tensors[name].tobytes(), value.tobytes(), law)
        master = dict(result.tensors)


def a_flush_empties_the_buffers_and_leaves_inputs_alone(rule: Aggregate, dtype: str) -> None:
    """Before the first merge and after a flush, buffers are empty; a rule without buffers never flushes anything."""
    rules, master, replica, base = make_case(rule, dtype)
    require(rules.flush(master, live=4) is None, "before the first merge there is nothing to flush")
    merged = master | rules.merge(master, replica, base, Merge(2, 1, 64, 64, 4)).tensors
    before = copied(merged)
    flushed = rules.flush(merged, live=4)
    require(same(before, merged), "no input of a flush is written")
    if flushed is not None:
        # `master` has one entry per name in NAMES, plus the rule's buffers.
        require(len(master) > len(NAMES), "a rule without buffers has nothing to flush")
        for name in flushed:
            expect(flushed[name].dtype, merged[name].dtype, f"a flush keeps the dtype of {name}")
        require(rules.flush(merged | flushed, live=4) is None, "after a flush there is nothing to flush")


def buffers_survive_being_stored(rule: Aggregate, dtype: str) -> None:
    """A merge result can be stored, read back read-only and unaligned, and merged again with the same result."""
    rules, master, replica, base = make_case(rule, dtype)
    once = rules.merge(master, replica, base, STALE).tensors
    stored = {}
    for name, array in once.items():
        raw = b"?" + array.tobytes()  # one byte ahead, so that the array is not aligned
        stored[name] = np.frombuffer(raw, array.dtype, count=array.size, offset=1).reshape(array.shape)
    twice, expected = (rules.merge(value, replica, base, STALE).tensors for value in (stored, once))
    require(same(twice, expected), "a merge into a stored result is the same")


def adopting_in_place_is_the_same(rule: Aggregate, dtype: str) -> None:
    """Adopting into the worker's own tensor gives the same result as into a new one, and writes no other input."""
    _, master, replica, base = make_case(rule, dtype)
    pushed, newest, local = (party["w.running_var"] for party in (base, master, replica))
    inputs = {"pushed": pushed, "newest": newest, "local": local}
    before, out, in_place = copied(inputs), np.empty_like(local), local.copy()
    rule.adopt(local, pushed, newest, out)
    rule.adopt(in_place, pushed, newest, in_place)
    require(same(before, inputs), "no input of adopt is written")
    require(same({"adopted": in_place}, {"adopted": out}), f"adopting in place: got {in_place}, expected {out}")


def replicas_that_are_not_finite_are_reported(rule: Aggregate, dtype: str) -> None:
    """NaN or infinity in a replica is reported and makes the sum not finite, at any scale and staleness."""
    for bad in (np.nan, np.inf, -np.inf):
        for scale in (1.0, 0.5):
            for merge in (FRESH, STALE):
                rules, master, replica, base = make_case(rule, dtype)
                replica["w.running_var"][2, 4] = bad  # the last element, which a check of blocks might miss
                result = rules.merge(master, replica, base, merge, scale=scale)
                expect(result.not_finite, "w.running_var", f"the tensor of a replica that holds {bad} is reported")
                require(not math.isfinite(result.sumsq), f"a sum of squares with {bad} is not finite")


def huge_replicas_never_make_the_master_infinite(rule: Aggregate, dtype: str) -> None:
    """Values near the largest float keep the master finite; the sum of squares saturates instead of overflowing."""
    rules, master, replica, base = make_case(rule, dtype)
    for sign in (1, -1, 1):  # each step goes from one end of the range to the other
        replica["w.running_mean"].fill(sign * np.finfo(dtype).max)
        step = replica["w.running_mean"].astype("f8") - base["w.running_mean"]
        result = rules.merge(master, replica, base, STALE)
        if result.not_finite is None:
            with np.errstate(over="ignore"):
                expected = min(float((step**2).sum()), np.finfo("f8").max)  # saturated, not infinite
            _expect_sum(result.sumsq, expected, 1e-2)
            master = dict(result.tensors)
        for name, array in master.items():
            require(bool(np.isfinite(array).all()), f"{name} of the master stays finite")
    for name, array in (rules.flush(master, live=3) or {}).items():
        require(bool(np.isfinite(array).all()), f"a flush leaves {name} of the master finite")


def scale_is_the_same_as_a_shorter_step(rule: Aggregate, dtype: str) -> None:
    """A scaled replica is read as b + scale·(p−b). A contribution and the sum of squares are not scaled."""
    for merge in (FRESH, STALE):
        for scale in (0.25, 0.9):
            rules, master, replica, base = make_case(rule, dtype)
            shorter = {name: (b + scale * (replica[name] - b)).astype(dtype) for name, b in base.items()}
            scaled = rules.merge(master, replica, base, merge, scale=scale)
            expected = rules.merge(master, replica if rule.is_contribution else shorter, base, merge)
            tolerance = 4 * TOLERANCE[dtype]  # `shorter` is rounded once more than the scaled merge
            for name, array in expected.tensors.items():
                close = np.allclose(scaled.tensors[name], array, rtol=tolerance, atol=64 * tolerance)
                require(close, f"{name} scaled: got {scaled.tensors[name]}, expected {array} as by a shorter step")
            _expect_sum(scaled.sumsq, squared_distance(replica, base), TOLERANCE[dtype])


CHECKS: tuple[Callable[[Aggregate, str], None], ...] = (
    dtype_and_shape_are_kept_and_inputs_left_alone,
    results_are_written_to_given_arrays,
    untrained_tensors_stay_bit_identical,
    a_flush_empties_the_buffers_and_leaves_inputs_alone,
    buffers_survive_being_stored,
    adopting_in_place_is_the_same,
)
"""Laws for every dtype that a rule accepts."""

FLOAT_CHECKS: tuple[Callable[[Aggregate, str], None], ...] = (
    replicas_that_are_not_finite_are_reported,
    huge_replicas_never_make_the_master_infinite,
    scale_is_the_same_as_a_shorter_step,
)
"""Additional laws for floating-point tensors."""


def _expect_sum(got: float, expected: float, tolerance: float) -> None:
    close = abs(got - expected) <= max(tolerance * expected, 1e-12)
    require(close, f"the sum of squares of a step: got {got}, expected {expected}")


def _flat(state: VertexState) -> Arrays:
    buffers = {f"{name}#{key}": array for name, held in state.buffers.items() for key, array in held.items()}
    return state.tensors | buffers


def _nested(arrays: Arrays) -> VertexState:
    state = VertexState()
    for name, array in arrays.items():
        tensor, _, buffer = name.partition("#")
        if buffer:
            state.buffers.setdefault(tensor, {})[buffer] = array
        else:
            state.tensors[name] = array
    return state
