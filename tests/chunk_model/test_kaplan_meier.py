"""Kaplan-Meier: a published example by hand, scipy's curve, the tail, and the density."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import integrate, stats

from chunk_model.families import Weibull
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.observations import ObservationError, Observations

# Weeks of remission under 6-MP (Freireich et al., Blood 21, 1963), the example of most textbooks.
RELAPSED = [6, 6, 6, 7, 10, 13, 16, 22, 23]
STILL_WELL = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
REMISSION = Observations(np.array(RELAPSED + STILL_WELL, np.float64), np.arange(21) < len(RELAPSED))

observed = st.lists(st.tuples(st.integers(1, 50).map(float), st.booleans()), min_size=1, max_size=40).map(
    lambda seen: Observations(*map(np.array, zip(*seen, strict=True)))
)


def test_the_textbook_example() -> None:
    curve = KaplanMeier.of(REMISSION)
    assert list(curve.time_s) == [6, 7, 10, 13, 16, 22, 23]
    by_hand = np.cumprod([18 / 21, 16 / 17, 14 / 15, 11 / 12, 10 / 11, 6 / 7, 5 / 6])
    np.testing.assert_allclose(curve.survival(curve.time_s), by_hand, rtol=1e-12)
    np.testing.assert_allclose(by_hand, [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], atol=5e-4)
    assert curve.survival(5.999) == 1.0 and curve.survival(6.5) == pytest.approx(18 / 21)
    assert curve.survival(35.0) == curve.survival(23.0)  # the last observation was a censored one


def test_the_tail_falls_at_the_rate_of_the_last_quarter_of_the_deaths() -> None:
    curve = KaplanMeier.of(REMISSION)
    # Seven of nine deaths had come by 16; two more in the time that was lived after that.
    lived = sum(max(0, week - 16) for week in RELAPSED + STILL_WELL)
    assert curve.tail_from_s == 35 and curve.tail_rate == pytest.approx(2 / lived)
    assert curve.survival(35 + 10.0) == pytest.approx(curve.survival(35.0) * math.exp(-10 * 2 / lived))
    assert curve.after(100).mean() == pytest.approx(lived / 2)


@given(observed)
def test_the_steps_are_those_of_scipy(seen: Observations) -> None:
    assume(seen.deaths > 0)
    curve = KaplanMeier.of(seen)
    reference = stats.ecdf(stats.CensoredData.right_censored(seen.duration_s, ~seen.ended)).sf
    t = reference.quantiles
    expected = reference.probabilities
    # Where scipy's curve comes to 0 ours does not, and that is the only difference.
    np.testing.assert_allclose(curve.survival(t)[expected > 0], expected[expected > 0], rtol=1e-9)
    assert bool(np.all(curve.survival(t) > 0))
    assert bool(np.all(curve.survival(t)[expected == 0] < 0.34))


def test_a_limit_beyond_all_lives_keeps_half_a_worker() -> None:
    curve = KaplanMeier.of(Observations([100.0] * 9, [True] * 9))
    assert curve.survival(99.0) == 1.0 and curve.survival(100.0) == pytest.approx(0.5 / 9.5)
    assert math.isfinite(curve.mean()) and 100 < curve.mean() < 106
    assert curve.after(1000).mean() == pytest.approx(100)  # with no later deaths: the time lived by the deaths


def test_with_no_deaths_half_a_death() -> None:
    curve = KaplanMeier.of(Observations([100.0, 300.0], [False, False]))
    assert curve.mean() == pytest.approx(800) and curve.survival(80.0) == pytest.approx(math.exp(-0.1))
    assert curve.hazard(5.0) == pytest.approx(1 / 800) and curve.quantile(0.5) == pytest.approx(800 * math.log(2))


def test_no_lives() -> None:
    with pytest.raises(ObservationError, match="observe at least one"):
        KaplanMeier.of(Observations([], []))


@given(observed)
def test_the_density_is_one(seen: Observations) -> None:
    curve = KaplanMeier.of(seen)
    edges = np.concatenate(([0.0], curve.time_s))
    within = sum(
        integrate.fixed_quad(lambda t: np.exp(curve.log_density(t)), low, high, n=20)[0]
        for low, high in pairwise(edges)
    )
    last = float(edges[-1])
    beyond = math.exp(float(curve.log_density(np.array([last + 1e-9]))[0])) / curve.tail_rate
    assert within + beyond == pytest.approx(1, rel=1e-3)


def test_the_hazard_adds_up_to_log_survival_at_the_knots() -> None:
    curve = KaplanMeier.of(REMISSION)
    edges = np.concatenate(([0.0], curve.time_s))
    middle = (edges[1:] + edges[:-1]) / 2
    added = np.cumsum(curve.hazard(middle) * np.diff(edges))
    np.testing.assert_allclose(-added[curve.knots], curve.log_survival(curve.time_s[curve.knots]), rtol=1e-12)
    assert curve.intervals == len(curve.knots) + 1 == 4


def test_the_density_nears_the_true_one() -> None:
    """On 4,000 lives a new life is predicted about as well as by the law itself: within 0.03 nats."""
    law, rng = Weibull(1.5, 2700), np.random.default_rng(5)
    curve = KaplanMeier.of(Observations(law.sample(rng, 4000), np.ones(4000, np.bool_)))
    new = law.sample(rng, 4000)
    lost = float(np.mean(law.log_density(new) - curve.log_density(new)))
    assert 0 < lost < 0.03
