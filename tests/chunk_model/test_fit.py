"""Fits recover known laws, maximise the likelihood, and accept all possible observations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.fit import FAMILIES, fit, log_likelihoods
from chunk_model.lifetime import Floats, Lifetime, LifetimeError
from chunk_model.observations import ObservationError, Observations


def censored(life: Lifetime, n: int, seed: int) -> Observations:
    """Return n lives, about a third of them censored."""
    rng = np.random.default_rng(seed)
    whole, seen = life.sample(rng, n), rng.exponential(2 * life.mean(), n)
    return Observations(np.minimum(whole, seen), whole <= seen).positive()


def likelihood(life: Lifetime, seen: Observations) -> float:
    return float(np.sum(log_likelihoods(life, seen)))


def standard_errors(make: Callable[[Floats], Lifetime], at: Floats, seen: Observations) -> Floats:
    """Return standard errors from the curvature of the log-likelihood (observed information), by differences."""
    steps = 1e-3 * at
    n = len(at)
    curvature = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            a, b = np.eye(n)[i] * steps, np.eye(n)[j] * steps
            corners = [likelihood(make(at + s * a + r * b), seen) for s, r in [(1, 1), (1, -1), (-1, 1), (-1, -1)]]
            curvature[i, j] = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * steps[i] * steps[j])
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(-curvature))))


def early_and_late(p: Floats) -> Lifetime:
    return Mixture((p[0], 1 - p[0]), (Exponential(p[1]), Weibull(p[2], p[3])))


def two_weibulls(p: Floats) -> Lifetime:
    return Mixture((p[0], 1 - p[0]), (Weibull(p[1], p[2]), Weibull(p[3], p[4])))


def parameters(life: Lifetime) -> Floats:
    """Return parameters in the order of the fields; of a mixture the first weight, then the parts by mean life."""
    if isinstance(life, Mixture):
        parts = sorted(zip(life.weights, life.parts, strict=True), key=lambda part: part[1].mean())
        return np.concatenate(([parts[0][0]], *(parameters(part) for _, part in parts)))
    return np.array(list(vars(life).values()))


@pytest.mark.parametrize(
    ("family", "make", "truth"),
    [
        ("exponential", lambda p: Exponential(*p), [2700]),
        ("weibull", lambda p: Weibull(*p), [0.4, 2700]),
        ("weibull", lambda p: Weibull(*p), [3.0, 2700]),
        ("lognormal", lambda p: LogNormal(*p), [2700, 1.5]),
        ("normal", lambda p: Normal(*p), [2700, 600]),
        ("normal", lambda p: Normal(*p), [2700, 2500]),  # a seventh of the bell is cut off
        ("mixture", early_and_late, [0.3, 120, 1.8, 7200]),
        ("mixture", two_weibulls, [0.4, 6.0, 300, 3.0, 7200]),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_known_law_is_found_again(
    family: str, make: Callable[[Floats], Lifetime], truth: list[float], seed: int
) -> None:
    """Fits to 2,000 lives, many of them censored, are within three standard errors."""
    law = make(np.array(truth))
    seen = censored(law, 2000, seed)
    fitted = fit(family, seen)
    estimates = parameters(fitted.lifetime)
    assert fitted.parameters == len(truth) == len(estimates)
    assert fitted.log_likelihood == pytest.approx(likelihood(fitted.lifetime, seen))
    assert bool(np.all(np.abs(estimates - truth) <= 3 * standard_errors(make, estimates, seen)))
    # Twice the gain over the truth is χ² with a degree of freedom per parameter.
    gain = fitted.log_likelihood - likelihood(law, seen)
    assert 0 <= 2 * gain < stats.chi2.ppf(0.9999, len(truth))


@pytest.mark.parametrize(
    ("family", "make", "first", "second"),
    [
        ("exponential", lambda a, b: Exponential(a), np.geomspace(10, 1e5, 2000), [1.0]),
        ("weibull", Weibull, np.geomspace(0.2, 20, 120), np.geomspace(100, 1e5, 120)),
        ("lognormal", LogNormal, np.geomspace(100, 1e5, 120), np.geomspace(0.05, 4, 120)),
        ("normal", Normal, np.geomspace(10, 1e5, 120), np.geomspace(10, 1e5, 120)),
    ],
)
@pytest.mark.parametrize("law", [Weibull(0.7, 3000), Weibull(3, 3000), LogNormal(3000, 1)], ids=str)
def test_nothing_on_a_grid_is_more_likely(
    family: str, make: Callable[[float, float], Lifetime], first: Floats, second: Floats, law: Lifetime
) -> None:
    seen = censored(law, 40, 11)
    fitted = fit(family, seen)
    grid = max(likelihood(make(float(a), float(b)), seen) for a in first for b in second)
    assert grid - 1e-6 <= fitted.log_likelihood
    assert fitted.log_likelihood - grid < 0.05  # and the grid is fine enough to have found it


def test_scipy_finds_the_same() -> None:
    seen = censored(Weibull(1.5, 2700), 300, 4)
    data = stats.CensoredData.right_censored(seen.duration_s, ~seen.ended)
    shape, _, scale = stats.weibull_min.fit(data, floc=0)
    np.testing.assert_allclose(parameters(fit("weibull", seen).lifetime), [shape, scale], rtol=1e-3)
    sigma, _, median = stats.lognorm.fit(data, floc=0)
    np.testing.assert_allclose(parameters(fit("lognormal", seen).lifetime), [median, sigma], rtol=1e-3)


def test_a_mixture_is_at_least_as_likely_as_its_parts_alone() -> None:
    for law in (Weibull(1.5, 2700), Weibull(0.5, 2700), LogNormal(2700, 1.5), Normal(2700, 300)):
        seen = censored(law, 300, 8)
        assert fit("mixture", seen).log_likelihood >= fit("weibull", seen).log_likelihood - 1.0


def test_many_lives_need_a_rough_search_only() -> None:
    law = Mixture((0.3, 0.7), (Exponential(300), Weibull(1.5, 7200)))
    seen = censored(law, 9000, 2)
    assert 0 <= fit("mixture", seen).log_likelihood - likelihood(law, seen) < stats.chi2.ppf(0.9999, 4) / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_without_deaths_half_a_death_is_assumed(family: str) -> None:
    fitted = fit(family, Observations([600, 3000], [False, False]))
    assert fitted.lifetime.mean() == pytest.approx(7200) and fitted.parameters <= 1 + (family == "kaplan_meier")
    assert fitted.lifetime.survival(720.0) == pytest.approx(math.exp(-0.1))


@pytest.mark.parametrize("family", ["weibull", "lognormal", "normal"])
def test_lives_that_all_end_alike_keep_a_spread_of_a_hundredth(family: str) -> None:
    life = fit(family, Observations([2700.0] * 20, [True] * 20)).lifetime
    assert life.mean() == pytest.approx(2700, rel=0.01)
    spread = life.quantile(0.84) - life.quantile(0.16)
    assert spread == pytest.approx(2 * 27, rel=0.3)


@settings(deadline=None)
@given(
    st.sampled_from(FAMILIES),
    st.lists(
        st.tuples(st.one_of(st.sampled_from([0.0, 1.0, 60.0]), st.floats(0, 1e9)), st.booleans()),
        min_size=1,
        max_size=12,
    ),
)
def test_whatever_was_observed_there_is_a_life(family: str, lives: list[tuple[float, bool]]) -> None:
    seen = Observations(*map(np.array, zip(*lives, strict=True)))
    fitted = fit(family, seen)
    life = fitted.lifetime
    assert math.isfinite(fitted.log_likelihood) and 0 < life.mean() < math.inf
    t = np.array([0.0, 1e-3, 1.0, 1e3, 1e6, 1e9, 1e12])
    survival = life.survival(t)
    assert survival[0] == 1 and bool(np.all(np.diff(survival) <= 1e-12))
    assert bool(np.all(np.diff(life.restricted_mean(t)) >= -1e-9 * life.mean()))
    assert 0 <= life.sample(np.random.default_rng(0)) < math.inf


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unit_of_time_does_not_matter(family: str) -> None:
    seen = censored(Weibull(1.5, 2700), 100, 6)
    minutes = Observations(seen.duration_s / 60, seen.ended)
    t = np.array([1.0, 10.0, 45.0, 100.0])
    np.testing.assert_allclose(
        fit(family, minutes).lifetime.survival(t), fit(family, seen).lifetime.survival(60 * t), rtol=1e-3
    )


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(ObservationError, match="observe at least one"):
        fit("weibull", Observations([], []))
    with pytest.raises(LifetimeError, match="no family 'gamma' of lifetimes; expected one of exponential, weibull"):
        fit("gamma", Observations([1], [True]))


def test_a_part_that_outlives_the_record_is_not_given_a_thousand_times_its_length() -> None:
    """Nine in ten die soon; of the rest no death was observed, so any length beyond the record explains them."""
    rng = np.random.default_rng(8)
    early = rng.weibull(0.6, 900) * 100
    seen = Observations(
        np.append(np.minimum(early, 2000), np.full(100, 2000.0)), np.append(early < 2000, np.zeros(100))
    )
    assert fit("mixture", seen).lifetime.mean() < 4000  # 12,800 with a bound of a thousand times the record
