"""Compressed steps: their error, the agreement of both ends, and rejected input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gridml.protocol.compression import FORMATS, StepFormat, bfloat16, from_bfloat16

FORMS = [*FORMATS.values()]
SIZES = [1, 2, 63, 64, 65, 255, 256, 257, 65_535, 65_536, 65_537, 200_001]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_element_is_further_off_than_half_a_level_of_its_block(form: StepFormat, size: int, dtype: str) -> None:
    rng = np.random.default_rng(size)
    base, step = rng.normal(size=size).astype(dtype), (rng.normal(size=size) ** 3).astype(dtype)
    codes = form.pack(step)
    assert codes is not None
    assert codes.shape == (form.nbytes(size),)
    error = np.abs(form.taken(codes, np.zeros_like(base)).astype(np.float64) - step)
    for start in range(0, size, form.block):
        block = slice(start, start + form.block)
        assert error[block].max() <= 0.501 * np.abs(step[block]).max() / form.levels
    np.testing.assert_allclose(form.taken(codes, base) - base, form.taken(codes, np.zeros_like(base)), atol=1e-5)


@pytest.mark.parametrize(("name", "share"), [("int8", 0.254), ("int4", 0.141)])
def test_how_many_bytes_a_step_takes_of_what_its_values_take(name: str, share: float) -> None:
    assert FORMATS[name].nbytes(1_000_000) / 4e6 == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(
    npst.arrays(
        st.sampled_from([np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8")]),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20),
        elements={"allow_subnormal": True},
    )
)
def test_any_step_is_packed_or_refused_and_read_back_as_the_same(form: StepFormat, step: np.ndarray) -> None:
    codes = form.pack(step)
    with np.errstate(over="ignore"):
        assert (codes is None) == (not np.isfinite(step.astype(np.float32)).all())
    if codes is not None:
        taken = form.taken(codes, np.zeros_like(step))
        assert (taken.shape, taken.dtype) == (step.shape, step.dtype)
        np.testing.assert_array_equal(taken, form.taken(codes.copy(), np.zeros_like(step)))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("extreme", [np.nan, np.inf, -np.inf, 1e300])
def test_what_no_scale_can_hold_is_not_packed(form: StepFormat, extreme: float) -> None:
    step = np.ones(100_000)
    step[-1] = extreme
    assert form.pack(step) is None


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_is_too_short_for_a_scale_stays_at_home_and_harms_no_other_block(form: StepFormat) -> None:
    step = np.zeros(3 * form.block)
    step[0], step[-1] = 1e-44, 1.0
    codes = form.pack(step)
    assert codes is not None
    taken = form.taken(codes, np.zeros(3 * form.block))
    assert abs(taken[0]) < 1e-43
    assert taken[-1] == pytest.approx(1.0)
    assert not taken[1:-1].any()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_rounding_lost_comes_with_the_next_steps(form: StepFormat) -> None:
    rng = np.random.default_rng(0)
    master = worker = np.zeros(1000, np.float32)
    lost = []
    for _ in range(50):
        worker = worker + rng.normal(size=1000).astype(np.float32)
        codes = form.pack(worker - master)
        assert codes is not None
        master = form.taken(codes, master)
        lost.append(float(np.abs(worker - master).max()))
    assert max(lost[25:]) <= 1.5 * max(lost[:25])  # errors do not accumulate
    assert lost[-1] <= 0.6 * 5 / form.levels


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("size", [0, 1, 64, 1000])
def test_codes_of_another_length_or_dtype_are_refused(form: StepFormat, size: int) -> None:
    base = np.zeros(size, np.float32)
    length = form.nbytes(size)
    wrong = [np.zeros(length + 1, np.uint8), np.zeros(length, np.int8), np.zeros((length, 1), np.uint8)]
    wrong += [np.zeros(length - 1, np.uint8)] if length else []
    for codes in wrong:
        with pytest.raises(ValueError, match=f"expected uint8 \\({length},\\) for {size} elements"):
            form.taken(codes, base)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float16", "float32", "float64"]))
def test_any_bytes_of_the_right_length_are_a_step(form: StepFormat, seed: int, dtype: str) -> None:
    codes = np.random.default_rng(seed).integers(0, 256, form.nbytes(130), np.uint8)
    taken = form.taken(codes, np.ones(130, dtype))
    assert (taken.shape, taken.dtype) == ((130,), dtype)  # if it is not finite, the gate refuses it


# --- answers


@given(
    npst.arrays(
        np.float32, npst.array_shapes(min_dims=0, min_side=0), elements={"allow_nan": False, "allow_infinity": False}
    )
)
def test_a_weight_comes_down_as_the_nearest_that_its_upper_half_can_say(values: np.ndarray) -> None:
    again = from_bfloat16(bfloat16(values))
    assert (again.shape, again.dtype) == (values.shape, np.float32)
    assert np.isfinite(again).all()
    error = np.abs(again.astype(np.float64) - values)
    assert (error <= np.maximum(np.abs(values.astype(np.float64)) * 2.0**-8, 1e-40)).all()
    np.testing.assert_array_equal(bfloat16(again), bfloat16(values))  # rounding again changes nothing


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.0 + 2.0**-8, 1.0),  # a tie goes to even
        (1.0 + 3 * 2.0**-8, 1.0 + 2.0**-6),
        (1.0 + 2.0**-8 + 2.0**-20, 1.0 + 2.0**-7),
        (-0.1, -0.10009765625),
        (3.4028235e38, 3.3895314e38),  # the largest of all does not become infinite
    ],
)
def test_a_weight_is_rounded_to_nearest(value: float, expected: float) -> None:
    assert from_bfloat16(bfloat16(np.array([value], np.float32)))[0] == np.float32(expected)


def test_upper_halves_of_another_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="a tensor in bf16 is float32; expected uint16"):
        from_bfloat16(np.zeros(3, np.float32))
