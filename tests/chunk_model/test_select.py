"""The choice of a family: the true law is found, ties go to the simpler one, and few deaths decide little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.fit import FAMILIES, fit, select
from chunk_model.lifetime import Lifetime, LifetimeError
from chunk_model.observations import ObservationError, Observations
from tests.support.effort import examples


def censored(life: Lifetime, n: int, seed: int) -> Observations:
    rng = np.random.default_rng(seed)
    whole, seen = life.sample(rng, n), rng.exponential(3 * life.mean(), n)
    return Observations(np.minimum(whole, seen), whole <= seen)


@pytest.mark.parametrize(
    ("law", "family"),
    [
        (Exponential(2700), "exponential"),
        (Weibull(0.5, 2700), "weibull"),
        (LogNormal(2700, 1.0), "lognormal"),
        (Normal(2700, 600), "normal"),
        (Mixture((0.3, 0.7), (Exponential(300), Weibull(1.5, 7200))), "mixture"),
    ],
    ids=str,
)
def test_the_law_that_is_there_is_found(law: Lifetime, family: str) -> None:
    seen = censored(law, 1000, 1)
    chosen = select(seen)
    assert chosen.family == family and chosen.is_sure and chosen.deaths == seen.deaths
    assert chosen.lifetime == fit(family, seen).lifetime and set(chosen.scores) == set(FAMILIES)
    assert family in chosen.reason and "Of 1000 lives" in chosen.reason


def test_a_law_of_no_family_is_drawn_as_it_is() -> None:
    # Machines in three sharp batches: more than two parts can follow.
    rng = np.random.default_rng(2)
    lives = np.concatenate([rng.normal(mean, mean / 50, 300) for mean in (600, 3600, 18000)])
    chosen = select(Observations(lives, np.ones(len(lives), np.bool_)))
    assert chosen.family == "kaplan_meier" and chosen.lifetime.survival(10000.0) == pytest.approx(1 / 3, abs=0.01)


def test_the_simpler_family_is_taken_within_one_standard_error() -> None:
    seen = censored(Exponential(2700), 300, 4)
    chosen = select(seen)
    assert chosen.family == "exponential" and max(chosen.scores.values()) > chosen.scores["exponential"]
    assert "simpler than the best" in chosen.reason


def test_a_mass_eviction_does_not_predict_itself() -> None:
    """Forty times, all 25 workers that began together are evicted together: forty lives were observed, not 1,000."""
    moments = Exponential(2700).sample(np.random.default_rng(4), 40)
    lives, died = np.repeat(moments, 25), np.ones(1000, np.bool_)
    begun = np.repeat(np.arange(40) * 1e5, 25)
    selected = select(Observations(lives, died, begun + lives))
    assert selected.family == "exponential" and "Of 1000 lives 1000 ended at 40 moments" in selected.reason
    assert select(Observations(lives, died)).family != "exponential"


@pytest.mark.parametrize(
    ("deaths", "families"),
    [(9, {"exponential"}), (10, {"exponential", "weibull", "lognormal", "normal"}), (30, set(FAMILIES))],
)
def test_few_deaths_leave_less_to_choose_from(deaths: int, families: set[str]) -> None:
    lives = Weibull(3, 2700).sample(np.random.default_rng(5), 40)
    chosen = select(Observations(lives, np.arange(40) < deaths))
    assert set(chosen.scores) == (families if len(families) > 1 else set())
    assert chosen.family in families and chosen.is_sure == (deaths >= 10)


def test_deaths_at_few_moments_are_few() -> None:
    lives = Weibull(3, 2700).sample(np.random.default_rng(5), 300)
    chosen = select(Observations(lives, np.ones(300, np.bool_), np.arange(300) % 5))
    assert chosen.family == "exponential" and not chosen.is_sure and chosen.deaths == 300
    assert "fewer than 10 independent deaths" in chosen.reason and "300 ended at 5 moments" in chosen.reason


def test_without_deaths() -> None:
    chosen = select(Observations([600, 3000], [False, False]))
    assert chosen.lifetime == Exponential(7200) and not chosen.is_sure and chosen.deaths == 0 and not chosen.scores
    assert "no worker has died in 3600 s, so lives are longer than that, a guess" in chosen.reason


def test_all_dead_at_once() -> None:
    chosen = select(Observations([2700] * 50, [True] * 50, [2700] * 50))
    assert chosen.lifetime == Exponential(2700) and not chosen.is_sure


def test_one_family_only() -> None:
    seen = censored(Weibull(2, 100), 100, 1)
    chosen = select(seen, ["normal"])
    assert chosen.family == "normal" and not chosen.scores and "the only family" in chosen.reason
    few = select(seen.take(np.flatnonzero(seen.ended)[:5]), ["normal"])
    assert few.family == "exponential" and not few.is_sure


def test_the_same_seed_gives_the_same_choice() -> None:
    seen = censored(Weibull(1.2, 100), 60, 1)
    one, two, other = select(seen, seed=1), select(seen, seed=1), select(seen, seed=2)
    assert one.scores == two.scores and one.reason == two.reason and one.scores != other.scores


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(st.one_of(st.sampled_from([0.0, 60.0]), st.floats(0, 1e7)), st.booleans(), st.integers(0, 60)),
        min_size=1,
        max_size=60,
    )
)
def test_whatever_was_observed_there_is_a_choice(lives: list[tuple[float, bool, int]]) -> None:
    duration, ended, moments = map(np.array, zip(*lives, strict=True))
    chosen = select(Observations(duration, ended, moments))
    assert 0 < chosen.lifetime.mean() < np.inf and chosen.family in FAMILIES
    assert all(np.isfinite(score) for score in chosen.scores.values())


def test_what_cannot_be_chosen_from() -> None:
    with pytest.raises(ObservationError, match="observe at least one"):
        select(Observations([], []))
    with pytest.raises(LifetimeError, match="no family 'gamma'"):
        select(censored(Weibull(2, 100), 100, 1), ["exponential", "gamma"])
