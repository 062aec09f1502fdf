"""The gate: what is not finite is refused, what is far out of the ordinary is shortened."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.decisions.gate import ENOUGH, OUTLIER, REMEMBERED, gate, step_size

sizes = st.floats(0, 1e12)


@given(sizes, st.lists(sizes, max_size=100), st.booleans())
def test_what_is_not_finite_is_refused_whatever_it_is(size: float, history: list[float], ahead: bool) -> None:
    scale, reason = gate("Network/0/model/weight", size, history, fast_forward=ahead)
    assert scale is None
    assert "Network/0/model/weight is not finite" in reason


@given(sizes, st.lists(sizes, max_size=100), st.booleans())
def test_a_step_is_never_longer_than_it_was_nor_than_the_limit(size: float, history: list[float], ahead: bool) -> None:
    scale, _ = gate(None, size, history, fast_forward=ahead)
    assert scale is not None
    assert 0 < scale <= 1
    usual = median(history[-REMEMBERED:]) if history else 0.0
    if len(history) >= ENOUGH and usual > 0 and not ahead:
        assert size * scale <= max(OUTLIER * usual, 0) * (1 + 1e-9)
        assert (scale == 1) == (size <= OUTLIER * usual)
    else:
        assert scale == 1


def test_an_outlier_is_shortened_to_five_medians() -> None:
    scale, reason = gate(None, 100.0, [1.0] * ENOUGH, fast_forward=False)
    assert scale == pytest.approx(0.05)
    assert "100.0 times the median" in reason


@pytest.mark.parametrize("size", [1e300, math.inf])
def test_the_farthest_step_is_shortened_and_not_to_nothing(size: float) -> None:
    scale, _ = gate(None, size, [1e-300] * ENOUGH, fast_forward=False)
    assert scale is not None
    assert 0 < scale < 1e-300


def test_few_steps_are_no_measure() -> None:
    assert gate(None, 100.0, [1.0] * (ENOUGH - 1), fast_forward=False) == (1.0, "accepted")


def test_old_steps_are_forgotten() -> None:
    history = [1e-6] * 1000 + [10.0] * REMEMBERED
    assert gate(None, 40.0, history, fast_forward=False)[0] == 1.0


def test_a_fast_forward_is_taken_whole() -> None:
    assert gate(None, 1e9, [1.0] * 50, fast_forward=True)[0] == 1.0


@given(st.floats(0, 1e100), st.integers(1, 10**6))
def test_sizes_of_steps_are_comparable_between_pushes_of_different_size(sumsq: float, vertices: int) -> None:
    """Four times the vertices of a random walk make twice the way, which is the same size."""
    assert step_size(4 * sumsq, 4 * vertices) == pytest.approx(step_size(sumsq, vertices))
    assert step_size(sumsq, vertices) == pytest.approx(math.sqrt(sumsq / vertices))


def test_a_push_without_vertices_divides_by_nothing() -> None:
    assert step_size(4.0, 0) == 2.0
