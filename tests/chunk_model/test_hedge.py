"""The lifetime that a chunk is chosen for: a mixture of the observed lives and the fitted family."""

from __future__ import annotations

import numpy as np
import pytest

from chunk_model.choose import choose
from chunk_model.families import Exponential
from chunk_model.fit import fit
from chunk_model.goodput import Costs, chunk_goodput
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.observations import Observations
from chunk_model.parse import MIN_DEATHS, OBSERVED_WEIGHT, hedged

COSTS = Costs(exec_s=0.1, start_s=60.0)


def two_kinds(count: int) -> Observations:
    """Lives that fit no family: half of them end at about 5 minutes, half at about 3 hours."""
    rng = np.random.default_rng(5)
    kind = np.arange(count) % 2
    return Observations(np.where(kind, rng.normal(300, 20, count), rng.normal(10_800, 500, count)), np.ones(count))


def test_survival_lies_between_both() -> None:
    seen = two_kinds(60)
    family, estimate = fit("exponential", seen).lifetime, KaplanMeier.of(seen)
    t = np.geomspace(1, 1e5, 50)
    expected = (1 - OBSERVED_WEIGHT) * family.survival(t) + OBSERVED_WEIGHT * estimate.survival(t)
    assert hedged(family, seen).survival(t) == pytest.approx(expected, abs=1e-12)


def test_few_deaths_and_lives_as_seen_stay_what_they_are() -> None:
    few, many = two_kinds(MIN_DEATHS - 1), two_kinds(100)
    family = Exponential(600.0)
    assert hedged(family, few) is family
    estimate = KaplanMeier.of(many)
    assert hedged(estimate, many) is estimate
    at_once = Observations(np.full(40, 600.0), np.ones(40), np.full(40, 9000.0))
    assert hedged(family, at_once) is family  # forty deaths, but one event


def test_the_choice_holds_where_the_family_is_wrong() -> None:
    seen = two_kinds(100)
    family, truth = fit("lognormal", seen).lifetime, KaplanMeier.of(seen)
    best = max(chunk_goodput(truth, COSTS, np.geomspace(100, 2e5, 2000)))
    assert chunk_goodput(truth, COSTS, choose(family, COSTS).chunk) < 0.7 * best
    choice = choose(family, COSTS, observations=seen)
    assert chunk_goodput(truth, COSTS, choice.chunk) > 0.95 * best
    assert choice.lifetime == hedged(family, seen)
