"""Mixtures: values by hand where possible, and independence of the order and form of their parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.lifetime import Lifetime, LifetimeError

TWO = Mixture((0.25, 0.75), (Exponential(10), Exponential(100)))


def test_two_exponentials_by_hand() -> None:
    early, late = 0.25 * math.exp(-20 / 10), 0.75 * math.exp(-20 / 100)
    assert TWO.survival(20.0) == pytest.approx(early + late)
    assert TWO.mean() == pytest.approx(0.25 * 10 + 0.75 * 100)
    assert TWO.hazard(20.0) == pytest.approx((early / 10 + late / 100) / (early + late))
    assert TWO.mean_left(np.array([20.0]))[0] == pytest.approx((early * 10 + late * 100) / (early + late))
    assert TWO.restricted_mean(20.0) == pytest.approx(TWO.mean() - early * 10 - late * 100)


def test_who_is_old_is_of_the_kind_that_lives_long() -> None:
    old = TWO.after(5000)
    assert old.mean() == pytest.approx(100) and old.hazard(0.0) == pytest.approx(1 / 100)


def test_a_part_that_is_extinct_counts_no_more() -> None:
    # By then (t/λ)^k has left the range of float64 in both parts, or in one.
    assert Mixture((0.5, 0.5), (Weibull(100, 1), Exponential(10))).hazard(1e6) == pytest.approx(0.1)
    assert Mixture((0.5, 0.5), (Weibull(100, 1), Weibull(100, 1))).survival(1e6) == 0.0
    assert Mixture((0.5, 0.5), (Weibull(100, 1), Weibull(100, 1))).restricted_mean(1e6) == pytest.approx(
        Weibull(100, 1).mean()
    )


parts: st.SearchStrategy[Lifetime] = st.one_of(
    st.builds(Normal, st.floats(0.1, 1e6), st.floats(0.1, 1e6)),
    st.builds(Weibull, st.floats(0.2, 20), st.floats(0.1, 1e6)),
    st.builds(LogNormal, st.floats(0.1, 1e6), st.floats(0.05, 3)),
)


@given(parts, st.floats(0.01, 0.99), st.floats(0, 0.999999))
def test_a_mixture_of_one_kind_is_that_kind(part: Lifetime, weight: float, q: float) -> None:
    same = Mixture((weight, 1 - weight), (part, part))
    assert same.quantile(q) == pytest.approx(part.quantile(q), rel=1e-9, abs=1e-12 * part.mean())
    assert same.mean() == pytest.approx(part.mean())


@given(parts, parts, st.floats(0.01, 0.99), st.floats(-700, -1e-12))
def test_the_inverse_of_log_survival_far_into_either_tail(
    one: Lifetime, two: Lifetime, weight: float, log_survival: float
) -> None:
    mixed = Mixture((weight, 1 - weight), (one, two))
    t = mixed.inverse_log_survival(np.array([log_survival]))
    # Between the floats beside t, ln S passes the value that is wanted.
    after, before = mixed.log_survival(t * (1 + 1e-11)), mixed.log_survival(t * (1 - 1e-11))
    slack = 1e-14 + 1e-12 * abs(log_survival)
    assert after[0] - slack <= log_survival <= before[0] + slack


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ((), ()),
        ((1.0,), ()),
        ((0.5, 0.5), (Exponential(1),)),
        ((0.5, 0.4), (Exponential(1), Exponential(2))),
        ((0.0, 1.0), (Exponential(1), Exponential(2))),
        ((math.nan, 1.0), (Exponential(1), Exponential(2))),
    ],
)
def test_weights_that_are_none(weights: tuple[float, ...], parts: tuple[Lifetime, ...]) -> None:
    with pytest.raises(LifetimeError, match="a mixture"):
        Mixture(weights, parts)
