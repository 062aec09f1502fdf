"""Bit sums differ between tensors that differ in any bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridml.engine.mirror import bit_sums
from tests.support.pretend_device import NAME

PLACES = ["cpu", pytest.param(NAME, marks=pytest.mark.pretended)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int16, torch.bool]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((bit_sums(one) == bit_sums(other)).all())


@given(st.integers(2, 300), st.sampled_from(DTYPES), st.integers(0, 10**6), st.integers(0, 10**6))
def test_one_element_that_changes_and_two_that_change_places_are_seen(
    count: int, dtype: torch.dtype, one: int, two: int
) -> None:
    values = torch.randint(0, 7, (count,), generator=torch.Generator().manual_seed(one))
    tensor = values.to(dtype)
    assert same(tensor, tensor.clone())
    changed = tensor.clone()
    changed[one % count] = 0 if values[one % count] else 1
    assert not same(tensor, changed)
    swapped = tensor.clone()
    swapped[[one % count, two % count]] = tensor[[two % count, one % count]]
    assert same(tensor, swapped) == torch.equal(tensor, swapped)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_tensor_has_sums(place: str, dtype: torch.dtype) -> None:
    whole = torch.arange(77).remainder(5).to(dtype).to(place)
    for tensor in (whole, whole[1:], whole[3:73].view(7, 10).t(), whole[0], whole[:0]):
        assert same(tensor, tensor.clone())
        if tensor.numel():
            other = tensor.clone()
            other[(-1,) * other.dim()] = 0 if tensor.reshape(-1)[-1].item() else 1
            assert not same(tensor, other)


def test_signs_of_zero_and_nan_have_bits_too() -> None:
    assert not same(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    assert same(torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]))
    assert not same(torch.zeros(9), torch.full((9,), float("nan")))
