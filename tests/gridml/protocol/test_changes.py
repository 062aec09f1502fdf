"""Changed elements of rows: they give the same bits as the rows, and what does not fit is recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gridml.protocol.changes import OVERHEAD_BYTES, ChangedElements, travels_as_changes

Array = NDArray[Any]
DTYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """Rows of any dtype and shape with any bits, and the rows after some elements changed to any bits."""
    dtype, seed = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.integers(0, 2**32 - 1))
    shape = draw(st.integers(0, 40)), *draw(st.sampled_from([(), (1,), (40,), (300,), (2, 70), (70_000,), (0,)]))
    rng, bits = np.random.default_rng(seed), f"u{dtype.itemsize}"
    before = rng.integers(0, np.iinfo(bits).max, shape, bits, endpoint=True)
    after = before.copy().reshape(-1)
    at = rng.integers(0, max(1, after.size), min(after.size, draw(st.integers(0, 60))))
    most = draw(st.sampled_from([1, 100, 1_000, np.iinfo(bits).max]))
    after[at] += rng.integers(0, min(most, np.iinfo(bits).max), len(at), bits, endpoint=True)
    return before.view(dtype), after.reshape(shape).view(dtype)


@given(pairs())
def test_changes_give_the_rows_bit_for_bit_and_are_smaller(rows: tuple[Array, Array]) -> None:
    before, after = rows
    kept = before.tobytes()
    changed = ChangedElements.of(before, after)
    if changed is None:
        return
    assert changed.nbytes + OVERHEAD_BYTES < after.nbytes
    assert changed.problem(len(after), after.shape[1:], after.dtype) is None
    again = changed.added_to(before)
    assert (again.dtype, again.shape, again.tobytes()) == (after.dtype, after.shape, after.tobytes())
    assert before.tobytes() == kept


def test_few_changes_of_counts_take_two_or_three_bytes_each() -> None:
    for width, each in ((256, 2), (1000, 3)):
        before = np.zeros((50, width), np.int32)
        after = before.copy()
        after[:, 3] += 1
        after[:, -1] -= 1
        changed = ChangedElements.of(before, after)
        assert changed is not None
        assert [part.dtype.name for part in changed.parts.values()][2] == "int8"
        assert changed.nbytes == 100 * each + 50 * np.min_scalar_type(width).itemsize


def test_rows_travel_where_they_are_smaller() -> None:
    before = np.zeros((100, 100), np.int32)
    assert ChangedElements.of(before, before + 2**20) is None  # an element and its step take 5 bytes instead of 4
    assert ChangedElements.of(before[:1, :10], before[:1, :10]) is None  # smaller than the names of its parts
    assert travels_as_changes(1_000, 1_000 - OVERHEAD_BYTES - 1)[0]
    assert not travels_as_changes(1_000, 1_000 - OVERHEAD_BYTES)[0]


def made(counts: Any = (1, 2), elements: Any = (0, 1, 3), steps: Any = (1, -1, 1)) -> ChangedElements:
    """Changes of two rows. A name stands for the usual values in that dtype."""
    usual = {"counts": ((1, 2), "uint8"), "elements": ((0, 1, 3), "uint8"), "steps": ((1, -1, 1), "int8")}
    given = zip(usual.values(), (counts, elements, steps), strict=True)
    return ChangedElements(
        *(np.abs(np.array(v)).astype(p) if isinstance(p, str) else np.array(p, dtype) for (v, dtype), p in given)
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (made(counts=(1, 2, 0)), "3 counts for 2 rows"),
        (made(counts=((1, 2),)), "counts of uint8 (1, 2), expected unsigned integers (n,)"),
        (made(counts="int64"), "counts of int64 (2,), expected unsigned"),
        (made(elements="float32"), "elements of float32 (3,), expected unsigned"),
        (made(steps="float32"), "steps of float32 (3,), expected signed"),
        (made(steps="uint8"), "steps of uint8 (3,), expected signed"),
        (made(steps="int64"), "steps of int64 for values of int32"),
        (made(elements=(0, 3, 1)), "ascending order"),
        (made(elements=(0, 1, 1)), "each once"),
        (made(elements=(0, 1, 4)), "element 4 of a row of 4"),
        (made(elements=(0, 1)), "2 elements, 3 steps"),
        (made(steps=(1, 1)), "3 elements, 2 steps"),
        (made(counts=(0, 2)), "counts of 2"),
        (made((0, 5), (0, 1, 2, 3, 3), (1,) * 5), "5 elements of a row of 4"),
    ],
)
def test_changes_that_do_not_fit_are_recognised(changed: ChangedElements, says: str) -> None:
    assert says in str(changed.problem(2, (4,), np.dtype(np.int32)))
    assert made().problem(2, (4,), np.dtype(np.int32)) is None


parts = st.builds(
    lambda dtype, values: np.array(values, np.int64).astype(dtype),
    st.sampled_from(["uint8", "uint16", "uint64", "int8", "int32", "int64", "float32", "bool"]),
    st.lists(st.integers(0, 5), max_size=5),
)


@given(parts, parts, parts)
def test_whatever_comes_fits_or_has_a_problem(counts: Array, elements: Array, steps: Array) -> None:
    changed, before = ChangedElements(counts, elements, steps), np.zeros((2, 3), np.int16)
    if changed.problem(2, (3,), before.dtype) is None:
        assert np.count_nonzero(changed.added_to(before)) <= len(elements) <= 6
