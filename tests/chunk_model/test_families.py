"""The four families with a formula, against scipy.stats, and far in their tails against asymptotics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from chunk_model.families import Exponential, LogNormal, Normal, Weibull
from chunk_model.lifetime import Lifetime, LifetimeError

LIVES: list[tuple[Lifetime, object]] = [
    (Normal(2700, 600), stats.truncnorm(-2700 / 600, np.inf, 2700, 600)),
    (Normal(10, 40), stats.truncnorm(-10 / 40, np.inf, 10, 40)),
    (Exponential(2700), stats.expon(scale=2700)),
    (Weibull(0.7, 2400), stats.weibull_min(0.7, scale=2400)),
    (Weibull(1.5, 2400), stats.weibull_min(1.5, scale=2400)),
    (LogNormal(2700, 0.8), stats.lognorm(0.8, scale=2700)),
]
each_life = pytest.mark.parametrize(("life", "reference"), LIVES, ids=[str(life) for life, _ in LIVES])


@each_life
def test_survival_density_quantile_and_mean_are_those_of_scipy(life: Lifetime, reference: stats.rv_continuous) -> None:
    t = np.array([0.0, 0.1, 1.0, 30.0, 900.0, 2700.0, 9000.0])
    np.testing.assert_allclose(life.survival(t), reference.sf(t), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(life.log_survival(t), reference.logsf(t), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(life.log_density(t[1:]), reference.logpdf(t[1:]), rtol=1e-9, atol=1e-9)
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


@pytest.mark.parametrize("life", [life for life, _ in LIVES] + [Weibull(8, 2400), Normal(2700, 27)], ids=str)
def test_a_restricted_mean_keeps_its_digits_for_the_shortest_times_and_is_the_mean_for_the_longest(
    life: Lifetime,
) -> None:
    t = life.quantile(1e-9) * np.array([1e-9, 1e-3, 1.0])
    assert bool(np.all((t * (1 - 2e-9) <= life.restricted_mean(t)) & (life.restricted_mean(t) <= t)))
    assert life.restricted_mean(np.inf) == life.mean()
    assert life.restricted_mean(1e12) == pytest.approx(life.mean(), rel=1e-9)
    assert life.restricted_mean(0.0) == 0.0


# A life of a thousand standard deviations, or of exp(−10⁶) of all workers: S is 0 in float64, and all else is not.
@pytest.mark.parametrize(
    ("life", "t", "hazard", "left"),
    [
        # h → x/σ and what is left → σ/x, x = (t − μ)/σ
        (Normal(2700, 600), 2700 + 600 * 1e6, 1e6 / 600, 600 / 1e6),
        (Normal(10, 40), 10 + 40 * 2e3, 2e3 / 40, 40 / 2e3),
        (Exponential(10), 1e7, 0.1, 10),
        # h = k/λ·(t/λ)^(k−1), and what is left → 1/h
        (Weibull(3, 10), 1e3, 3e3, 1 / 3e3),
        # h → x/(σt), what is left → σt/(x − σ), x = ln(t/m)/σ
        (LogNormal(1, 0.01), math.exp(10), 1e3 / (0.01 * math.exp(10)), 0.01 * math.exp(10) / 1e3),
    ],
    ids=str,
)
def test_the_far_tail(life: Lifetime, t: float, hazard: float, left: float) -> None:
    at = np.array([t])
    assert life.survival(t) == 0.0 and bool(np.isfinite(life.log_survival(at)) & np.isfinite(life.log_density(at)))
    assert life.hazard(t) == pytest.approx(hazard, rel=1e-4)
    assert life.mean_left(at)[0] == pytest.approx(left, rel=1e-4)
    assert life.after(t).mean() == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("k", [0.05, 0.5, 1.0, 2.5, 40.0])
def test_what_is_left_of_a_weibull_life_has_no_seam_between_its_two_formulae(k: float) -> None:
    life = Weibull(k, 100)
    near, far = (life.mean_left(np.array([100 * z ** (1 / k)]))[0] for z in (499.999, 500.001))
    assert near == pytest.approx(far, rel=1e-4 * max(1, 1 / k) / 4)


def test_an_exponential_life_stays_young() -> None:
    assert Exponential(60).after(1e9) == Exponential(60)
    with pytest.raises(LifetimeError, match="at least 0 s, got -1"):
        Exponential(60).after(-1)


def test_density_and_hazard_at_birth() -> None:
    zero = np.zeros(1)
    assert Weibull(0.5, 10).log_density(zero)[0] == Weibull(0.5, 10).hazard(0.0) == np.inf
    assert Weibull(2, 10).log_density(zero)[0] == -np.inf and Weibull(2, 10).hazard(0.0) == 0.0
    assert Weibull(1, 10).log_density(zero)[0] == pytest.approx(-math.log(10)) and Weibull(1, 10).hazard(0.0) == 0.1
    assert LogNormal(10, 1).log_density(zero)[0] == -np.inf and LogNormal(10, 1).hazard(0.0) == 0.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_parameters_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(LifetimeError, match="finite and above 0"):
        Exponential(value)
