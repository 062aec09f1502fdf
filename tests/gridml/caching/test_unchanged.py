"""Unchanged tensors of module vertices, which a push omits, and their reconstruction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gridml.aggregates.base import same_bits
from gridml.caching.master_copy import changed, reconstruct
from gridml.protocol.push import PushContent, ReplicaPart

KEY = ("Network", 0)
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (WEIGHT, True),
        (WEIGHT.copy(), True),
        (np.asfortranarray(WEIGHT), True),
        (WEIGHT.reshape(3, 2), False),
        (WEIGHT.astype(np.float64), False),
        (WEIGHT.view(np.int32), False),
        (np.where(WEIGHT == 0, np.float32(-0.0), WEIGHT), False),
        (np.nextafter(WEIGHT, np.float32(9)), False),
    ],
)
def test_bits_are_compared(other: np.ndarray, same: bool) -> None:
    assert same_bits(WEIGHT, other) is same


@given(st.sampled_from(["float16", "float32", "float64", "int64", "bool"]), npst.array_shapes(min_dims=0), st.data())
def test_one_element_makes_the_difference(dtype: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    one = np.zeros(shape, dtype)
    other = one.copy()
    assert same_bits(one, other)
    other.reshape(-1)[data.draw(st.integers(0, one.size - 1))] = 1
    assert not same_bits(one, other)


def test_a_difference_behind_the_first_megabyte_is_seen() -> None:
    one = np.zeros(3_000_000, np.uint8)
    other = one.copy()
    other[-1] = 1
    assert not same_bits(one, other)
    assert same_bits(np.zeros((0, 3)), np.zeros((0, 3)))


def test_what_is_not_a_number_is_compared_by_its_bits() -> None:
    nothing = np.full(2, np.nan)
    assert same_bits(nothing, nothing.copy())


def test_only_what_differs_travels() -> None:
    base = {"weight": WEIGHT, "bias": BIAS}
    assert changed({"weight": WEIGHT.copy(), "bias": BIAS + 1}, base).keys() == {"bias"}
    assert changed({"weight": WEIGHT + 1, "bias": BIAS + 1}, base).keys() == {"weight", "bias"}
    assert changed({"weight": WEIGHT, "bias": BIAS}, {"bias": BIAS}).keys() == {"weight"}
    assert changed({"weight": WEIGHT}, {}).keys() == {"weight"}
    assert changed({}, {}) == {}


def test_of_a_vertex_that_was_used_and_did_not_change_the_smallest_tensor_travels() -> None:
    assert changed({"weight": WEIGHT.copy(), "bias": BIAS.copy()}, {"weight": WEIGHT, "bias": BIAS}).keys() == {"bias"}


def test_what_was_left_out_is_the_very_array_of_the_base() -> None:
    push = PushContent(ReplicaPart({KEY: {"bias": BIAS + 1}}))
    whole = reconstruct(push, {KEY: {"weight": WEIGHT, "bias": BIAS}, ("Network", 1): {}}).modules
    assert whole.keys() == {KEY}
    assert whole[KEY]["weight"] is WEIGHT
    np.testing.assert_array_equal(whole[KEY]["bias"], BIAS + 1)
