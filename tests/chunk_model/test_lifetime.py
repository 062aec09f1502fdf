"""Properties of all lifetimes: every function follows from S, for all formulae; and durations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import Floats, Lifetime, LifetimeError, Residual, parse_duration
from chunk_model.observations import Observations

seconds = st.floats(0.01, 1e7)
families: st.SearchStrategy[Lifetime] = st.one_of(
    # Narrower than a thousandth, float64 has too few digits for a time and for what is left of it.
    st.builds(lambda mean, spread: Normal(mean, mean * spread), seconds, st.floats(1e-3, 1e3)),
    st.builds(Exponential, seconds),
    st.builds(Weibull, st.floats(0.3, 10), seconds),
    st.builds(LogNormal, seconds, st.floats(0.05, 2.5)),
)
weights = st.floats(0.01, 0.99).map(lambda weight: (weight, 1 - weight))
smooth: st.SearchStrategy[Lifetime] = st.one_of(
    families,
    st.builds(Mixture, weights, st.tuples(families, families)),
    # What is left at an age that workers do reach.
    st.builds(lambda life, q: life.after(life.quantile(q)), families, st.floats(0.01, 0.9999)),
)
curves: st.SearchStrategy[Lifetime] = st.lists(st.tuples(seconds, st.booleans()), min_size=1, max_size=30).map(
    lambda seen: KaplanMeier.of(Observations(*map(np.array, zip(*seen, strict=True))))
)
lifetimes = st.one_of(smooth, curves)


def area(life: Lifetime, t: float) -> float:
    """∫₀ᵗ S by 8-point Gauss-Legendre on some hundred pieces, short ones near 0 and where workers die, of each part."""
    shares = np.append(np.geomspace(1e-12, 0.01, 100), np.linspace(0.01, 1, 100))
    parts = life.parts if isinstance(life, Mixture) else (life,)
    dying = [np.minimum(part.quantile(min(1 - part.survival(t), 1 - 1e-15) * shares), t) for part in parts]
    edges = np.unique(np.concatenate(([0.0], np.geomspace(t * 1e-9, t, 100), *dying)))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    half = np.diff(edges)[:, None] / 2
    return float(np.sum(half * weights * life.survival(edges[:-1, None] + half * (1 + nodes))))


@given(lifetimes, st.lists(st.floats(-10, 1e9), min_size=2, max_size=10))
def test_survival_starts_at_one_and_only_falls(life: Lifetime, times: list[float]) -> None:
    survival = life.survival(np.sort(np.array(times)))
    assert bool(np.all((survival >= 0) & (survival <= 1))) and bool(np.all(np.diff(survival) <= 1e-12))
    assert life.survival(0.0) == life.survival(-1.0) == 1.0


@given(smooth, st.floats(0.001, 0.999))
@example(Mixture((0.71875, 0.28125), (Normal(5.0, 0.0390625), Normal(1.0, 1.0))), 0.5)  # one dies within moments
def test_a_restricted_mean_is_the_area_below_survival(life: Lifetime, q: float) -> None:
    t = life.quantile(q)
    assert life.restricted_mean(t) == pytest.approx(area(life, t), rel=1e-6)


@given(curves, st.floats(0, 3))
def test_the_area_below_steps(life: Lifetime, times: float) -> None:
    assert isinstance(life, KaplanMeier)
    t = times * life.tail_from_s
    edges = np.unique(np.concatenate(([0.0], life.time_s[life.time_s < t], [min(t, life.tail_from_s)])))
    steps = float(np.sum(np.diff(edges) * life.survival(edges[:-1])))
    beyond = (
        life.survival(life.tail_from_s) * -math.expm1(-life.tail_rate * max(t - life.tail_from_s, 0)) / life.tail_rate
    )
    assert life.restricted_mean(t) == pytest.approx(steps + beyond, rel=1e-9, abs=1e-9 * life.mean())


@given(lifetimes, st.lists(st.floats(0, 1e9), min_size=2, max_size=10))
def test_restricted_means_rise_to_the_mean(life: Lifetime, times: list[float]) -> None:
    t = np.sort(np.array(times))
    means = np.append(life.restricted_mean(t), life.restricted_mean(np.inf))
    assert bool(np.all(np.diff(means) >= -1e-9 * life.mean())) and means[-1] == life.mean()


@given(smooth, st.floats(0.001, 0.999))
def test_the_hazard_is_the_slope_of_log_survival(life: Lifetime, q: float) -> None:
    t = life.quantile(q)
    # A step over which ln S falls by about 10⁻⁵: long enough against rounding, short enough against curvature.
    step = min(1e-5 / life.hazard(t), 1e-3 * t)
    before, after = life.hazard(np.array([t - step, t + step])) / life.hazard(t)
    assume(abs(before - 1) < 1e-2 and abs(after - 1) < 1e-2)
    low, high = life.log_survival(np.array([t - step, t + step]))
    rounding = 1e-15 * (abs(low) + _reached(life) + 1) / (low - high) + 1e-15 * _age(life, t) / step
    assert (low - high) / (2 * step) == pytest.approx(life.hazard(t), rel=1e-4 + rounding)
    density, survival = (float(of(np.array([t]))[0]) for of in (life.log_density, life.log_survival))
    assert math.exp(density - survival) == pytest.approx(life.hazard(t), rel=1e-9)


def _age(life: Lifetime, t: float) -> float:
    return life.age_s + t if isinstance(life, Residual) else t


def _reached(life: Lifetime) -> float:
    """−ln S of the age already lived, from which rounding comes."""
    return -float(life.base.log_survival(np.array(life.age_s))) if isinstance(life, Residual) else 0.0


@given(smooth, st.floats(0, 0.999))
def test_quantile_inverts_survival(life: Lifetime, q: float) -> None:
    assert 1 - life.survival(life.quantile(q)) == pytest.approx(q, abs=1e-6)


@given(curves, st.floats(0, 0.999))
def test_quantile_of_a_step_is_the_first_time_with_that_share_of_deaths(life: Lifetime, q: float) -> None:
    t = life.quantile(q)
    assert life.survival(t) <= 1 - q + 1e-12
    assert life.survival(t * (1 - 1e-9)) >= 1 - q - 1e-6


@given(lifetimes, st.floats(0, 0.99), st.floats(0, 0.99))
def test_the_life_that_is_left(life: Lifetime, q: float, more: float) -> None:
    age, t = life.quantile(q), life.quantile(more)
    left = life.after(age)
    assert left.survival(t) == pytest.approx(life.survival(age + t) / life.survival(age), rel=1e-6, abs=1e-12)
    assert left.after(t).survival(t) == pytest.approx(life.after(age + t).survival(t), rel=1e-9, abs=1e-12)
    whole = life.restricted_mean(age) + life.survival(age) * left.mean()
    assert whole == pytest.approx(life.mean(), rel=1e-6)


@given(lifetimes, st.floats(1e-3, 1e3), st.integers(0, 2**32), st.floats(0.1, 10))
def test_a_compressed_life_is_the_same_life_shorter(life: Lifetime, factor: float, seed: int, share: float) -> None:
    short = life.scaled(factor)
    drawn, faster = (each.sample(np.random.default_rng(seed)) for each in (life, short))
    assert faster == pytest.approx(drawn * factor, rel=1e-6, abs=1e-9 * short.mean())
    assert short.mean() == pytest.approx(life.mean() * factor, rel=1e-9)
    # At an odd share of the mean, where no step is: times at a step may round to either side of it.
    t = share * life.mean() * 1.000123
    assert short.restricted_mean(t * factor) == pytest.approx(life.restricted_mean(t) * factor, rel=1e-6)


EXAMPLES: list[Lifetime] = [
    Normal(2700, 600),
    Normal(10, 40),
    Weibull(0.5, 2700),
    LogNormal(2700, 1.5),
    Mixture((0.3, 0.7), (Exponential(300), Weibull(1.5, 7200))),
    Weibull(1.5, 2700).after(8000),
    KaplanMeier.of(Observations([10, 20, 20, 35, 50, 90, 120], [True, True, True, False, True, False, True])),
]


@pytest.mark.parametrize("life", EXAMPLES, ids=str)
def test_draws_follow_survival(life: Lifetime) -> None:
    """Samples pass the Kolmogorov-Smirnov test at a level of 10⁻³; for step functions it is conservative."""
    n = 4000
    drawn = np.sort(life.sample(np.random.default_rng(7), n))
    at = np.unique(drawn)
    later = 1 - np.searchsorted(drawn, at, side="right") / n
    assert np.max(np.abs(later - life.survival(at))) < 1.95 / math.sqrt(n)


@pytest.mark.parametrize("life", [*EXAMPLES, Exponential(10)], ids=str)
def test_a_float_gives_a_float_and_an_array_an_array_of_its_shape(life: Lifetime) -> None:
    t = np.array([[0.5, 20.0, 3000.0], [1.0, 2.0, 1e5]])
    for of in (life.survival, life.hazard, life.restricted_mean):
        value: Floats = of(t)
        assert value.shape == (2, 3) and value.dtype == np.float64
        one: object = of(20.0)
        assert type(one) is float and one == pytest.approx(value[0, 1], rel=1e-12)
    quantiles = life.quantile(np.array([[0.1, 0.5, 0.9]]))
    assert quantiles.shape == (1, 3) and type(life.quantile(0.1)) is float
    assert life.log_density(t).shape == life.log_survival(t).shape == life.mean_left(t).shape == (2, 3)


def test_one_draw_is_a_float_and_the_same_as_the_first_of_many() -> None:
    one = Exponential(10).sample(np.random.default_rng(3))
    assert isinstance(one, float) and one == Exponential(10).sample(np.random.default_rng(3), 5)[0]


def test_at_birth_the_whole_life_is_left() -> None:
    assert Weibull(2, 10).after(0) == Weibull(2, 10)
    assert str(Weibull(2, 10).after(5)) == "weibull(2.0,10.0s) at the age of 5s"


@pytest.mark.parametrize("age", [-1.0, math.nan, math.inf])
def test_an_age_that_is_none(age: float) -> None:
    with pytest.raises(LifetimeError, match="an age must be finite and at least 0 s"):
        Weibull(2, 10).after(age)


def test_an_age_beyond_all_lives() -> None:
    with pytest.raises(LifetimeError, match="no life reaches the age of 1e\\+300 s"):
        Weibull(2, 10).after(1e300)


@pytest.mark.parametrize("q", [-0.1, 1.0, math.nan])
def test_a_share_outside_of_zero_to_one_has_no_quantile(q: float) -> None:
    with pytest.raises(LifetimeError, match="0 <= q < 1"):
        Exponential(1).quantile(q)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("45m", 2700), ("2h", 7200), ("1.5h", 5400), ("12", 12), ("1d", 86400)]
)
def test_parse_duration(text: str, expected: float) -> None:
    assert parse_duration(text) == expected
