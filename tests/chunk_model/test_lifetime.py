"""Lifetimes: each distribution against its own definition (scipy.stats, quadrature), and the text form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from chunk_model.lifetime import Exponential, Lifetime, LifetimeError, LogNormal, Normal, Weibull, parse, parse_duration

LIVES: list[tuple[Lifetime, object]] = [
    (Normal(2700, 600), stats.truncnorm(-2700 / 600, np.inf, 2700, 600)),
    (Normal(10, 40), stats.truncnorm(-10 / 40, np.inf, 10, 40)),
    (Exponential(2700), stats.expon(scale=2700)),
    (Weibull(0.7, 2400), stats.weibull_min(0.7, scale=2400)),
    (Weibull(1.5, 2400), stats.weibull_min(1.5, scale=2400)),
    (LogNormal(2700, 0.8), stats.lognorm(0.8, scale=2700)),
]
each_life = pytest.mark.parametrize(("life", "reference"), LIVES, ids=[str(life) for life, _ in LIVES])

seconds = st.floats(0.01, 1e7)
lifetimes: st.SearchStrategy[Lifetime] = st.one_of(
    st.builds(Normal, seconds, seconds),
    st.builds(Exponential, seconds),
    st.builds(Weibull, st.floats(0.2, 10), seconds),
    st.builds(LogNormal, seconds, st.floats(0.05, 3)),
)


@each_life
def test_survival_quantile_and_mean_are_those_of_scipy(life: Lifetime, reference: stats.rv_continuous) -> None:
    t = np.array([0.0, 0.1, 1.0, 30.0, 900.0, 2700.0, 9000.0])
    np.testing.assert_allclose(life.survival(t), reference.sf(t), rtol=1e-9, atol=1e-300)
    q = np.array([0.0, 1e-6, 0.1, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(life.quantile(q), reference.ppf(q), rtol=1e-7, atol=1e-9)
    assert life.mean() == pytest.approx(reference.mean(), rel=1e-9)


@each_life
def test_the_mean_is_the_area_below_survival(life: Lifetime, reference: stats.rv_continuous) -> None:
    split = life.mean()
    near = integrate.quad(life.survival, 0, split)[0]
    far = integrate.quad(life.survival, split, np.inf, limit=200)[0]
    assert near + far == pytest.approx(life.mean(), rel=1e-6)


@each_life
def test_draws_follow_the_distribution(life: Lifetime, reference: stats.rv_continuous) -> None:
    drawn = life.sample(np.random.default_rng(1), 4000)
    assert drawn.shape == (4000,) and drawn.dtype == np.float64 and bool(np.all(drawn >= 0))
    assert stats.kstest(drawn, reference.cdf).pvalue > 1e-3


@given(lifetimes, st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_a_compressed_life_is_the_same_life_shorter(life: Lifetime, factor: float, seed: int) -> None:
    whole, short = (each.sample(np.random.default_rng(seed)) for each in (life, life.scaled(factor)))
    assert short == pytest.approx(whole * factor, rel=1e-9, abs=1e-12)
    assert life.scaled(factor).mean() == pytest.approx(life.mean() * factor, rel=1e-9)


@given(lifetimes, st.lists(st.floats(-10, 1e9), min_size=2, max_size=10))
def test_survival_starts_at_one_and_only_falls(life: Lifetime, times: list[float]) -> None:
    survival = life.survival(np.sort(np.array(times)))
    assert bool(np.all((survival >= 0) & (survival <= 1))) and bool(np.all(np.diff(survival) <= 1e-12))
    assert life.survival(0.0) == life.survival(-1.0) == 1.0


@given(lifetimes, st.floats(0, 0.999))
def test_quantile_inverts_survival(life: Lifetime, q: float) -> None:
    assert 1 - life.survival(life.quantile(q)) == pytest.approx(q, abs=1e-6)


@given(lifetimes)
def test_text_comes_back_as_the_same_distribution(life: Lifetime) -> None:
    assert parse(str(life)) == life


def test_one_draw_is_a_float_and_the_same_as_the_first_of_many() -> None:
    one = Exponential(10).sample(np.random.default_rng(3))
    assert isinstance(one, float) and one == Exponential(10).sample(np.random.default_rng(3), 5)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("normal(45m,10m)", Normal(2700, 600)),
        (" Normal( 45m , 600 ) ", Normal(2700, 600)),
        ("exponential(45m)", Exponential(2700)),
        ("exponential(1.5h)", Exponential(5400)),
        ("weibull(1.5,40m)", Weibull(1.5, 2400)),
        ("lognormal(45m,0.8)", LogNormal(2700, 0.8)),
    ],
)
def test_parse(text: str, expected: Lifetime) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("45m", 2700), ("2h", 7200), ("1.5h", 5400), ("12", 12), ("1d", 86400)]
)
def test_parse_duration(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read the lifetime"),
        ("45m", "cannot read the lifetime"),
        ("gamma(1,2)", "cannot read the lifetime"),
        ("normal(45m", "cannot read the lifetime"),
        ("normal(45m)", "has 1 parameters, expected 2 (mean_s, sd_s)"),
        ("exponential()", "has 0 parameters, expected 1"),
        ("exponential(45x)", 'the duration "45x"'),
        ("exponential(-45m)", 'the duration "-45m"'),
        ("exponential(0)", "above 0, got 0.0"),
        ("normal(45m,0)", "Normal.sd_s must be finite"),
        ("weibull(x,40m)", '"x" is not a number'),
        ("weibull(nan,40m)", "above 0, got nan"),
        ("weibull(0.001,40m)", "no usable mean"),
        ("lognormal(45m,100)", "no usable mean"),
    ],
)
def test_a_bad_text_says_what_was_got_and_gives_an_example(text: str, says: str) -> None:
    with pytest.raises(LifetimeError) as caught:
        parse(text)
    message = str(caught.value)
    assert says in message and f'"{text}"' in message and "normal(45m,10m)" in message


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_parameters_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(LifetimeError, match="finite and above 0"):
        Exponential(value)


@pytest.mark.parametrize("q", [-0.1, 1.0, math.nan])
def test_a_share_outside_of_zero_to_one_has_no_quantile(q: float) -> None:
    with pytest.raises(LifetimeError, match="0 <= q < 1"):
        Exponential(1).quantile(q)
