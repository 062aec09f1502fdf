"""The paper's formulas as printed: their values, and the error of the second."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model import paper
from chunk_model.families import Exponential, LogNormal, Normal, Weibull
from chunk_model.goodput import ChunkError, Costs, one_chunk_safe_ends
from chunk_model.lifetime import Lifetime
from chunk_model.paper import (
    deterministic_chunk,
    normal_chunk_as_printed,
    normal_cost_as_printed,
    stochastic_chunk_as_printed,
    stochastic_cost_as_printed,
    total_time,
)

COSTS = Costs(exec_s=0.9, copy_s=0.1, start_s=60, end_s=5)

lifetimes: st.SearchStrategy[Lifetime] = st.one_of(
    st.builds(Normal, st.floats(10, 1e5), st.floats(1, 1e5)),
    st.builds(Exponential, st.floats(10, 1e5)),
    st.builds(Weibull, st.floats(0.3, 5), st.floats(10, 1e5)),
    st.builds(LogNormal, st.floats(10, 1e5), st.floats(0.1, 2.5)),
)


def test_the_examples_in_the_docstring() -> None:
    assert doctest.testmod(paper).failed == 0 < doctest.testmod(paper).attempted


def test_deterministic() -> None:
    assert deterministic_chunk(2700.0, COSTS) == 2700
    assert deterministic_chunk(2700.9, COSTS) == 2700
    assert deterministic_chunk(0.5, COSTS) == 1  # no chunk has less than a vertex
    for mean in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ChunkError, match="lifetime_mean must be"):
            deterministic_chunk(mean, COSTS)
    with pytest.raises(ChunkError, match="more vertices than can be counted"):
        deterministic_chunk(2700.0, Costs(exec_s=1e-320))


def test_stochastic_is_the_printed_product() -> None:
    life, n, vertices = Normal(2700.0, 600.0), 2000, 1e6
    printed = vertices / n * life.survival(2000.0) * (60 + 2000 + 5)
    assert stochastic_cost_as_printed(life, COSTS, n, vertices) == pytest.approx(printed, rel=1e-12)
    costs = stochastic_cost_as_printed(life, COSTS, np.array([[10, 2000]]), vertices)
    assert costs.shape == (1, 2) and costs[0, 1] == pytest.approx(printed)


@given(lifetimes, st.lists(st.integers(1, 10**7), min_size=1, max_size=20, unique=True))
def test_the_defect_killed_jobs_are_free_so_the_largest_chunk_is_the_cheapest(
    life: Lifetime, candidates: list[int]
) -> None:
    costs = stochastic_cost_as_printed(life, COSTS, np.sort(np.array(candidates)), 1e6)
    assert bool(np.all(np.diff(costs) <= 0))
    assert stochastic_chunk_as_printed(life, COSTS, np.array(candidates)) == max(candidates)


def test_the_defect_the_cost_tends_to_nothing_where_nothing_is_ever_finished() -> None:
    life, sizes = Normal(2700.0, 600.0), np.array([100, 2000, 4000, 20_000])
    costs = stochastic_cost_as_printed(life, COSTS, sizes, 1e6)
    assert costs[2] < 0.02 * costs[0] and costs[3] < 1e-100
    goodput = one_chunk_safe_ends(life, COSTS, sizes)
    assert int(np.argmax(goodput)) == 1 and goodput[3] < 1e-100


def test_the_third_reading_has_a_minimum_between_the_ends_and_pays_for_killed_jobs_alone() -> None:
    costs, sizes = Costs(exec_s=0.1, copy_s=0.01, start_s=60, end_s=6), np.arange(1.0, 40_000.0)
    total = normal_cost_as_printed(2700.0, 600.0, costs, sizes, vertices=1e6)
    best = normal_chunk_as_printed(2700.0, 600.0, costs, sizes)
    assert 1 < best < sizes[-1] and total[best - 1] == total.min()
    assert bool(np.all(np.diff(total[:best]) < 0)) and bool(np.all(np.diff(total[best - 1 : 20_000]) > 0))
    work = best * 0.11
    killed = 0.5 * math.erfc((2700.0 - work) / (600.0 * math.sqrt(2)))
    assert total[best - 1] == pytest.approx(1e6 / best * killed * (60 + work + 6), rel=1e-9)
    assert normal_cost_as_printed(2700.0, 600.0, costs, float(best), vertices=1e6) == total[best - 1]
    life = Normal(2700.0, 600.0)  # a chunk of a minute is no good one, only a safe one
    assert one_chunk_safe_ends(life, costs, float(best)) < 0.6 < 0.8 < one_chunk_safe_ends(life, costs, 12_000.0)


def test_figure_4_a_bad_size_costs_two_orders_of_magnitude() -> None:
    """A million vertices, four decades of sizes: TotalTime, corrected, of the best size against the worst."""
    life, sizes = Normal(2700.0, 600.0), np.unique(np.rint(np.geomspace(1, 10**4, 400)))
    costs = Costs(exec_s=0.9, copy_s=0.1, start_s=180, end_s=5)
    paid_s = total_time(life, costs, sizes[sizes <= 5000], 1e6)
    assert paid_s.max() / paid_s.min() > 100


def test_total_time_pays_for_every_job_until_all_is_kept() -> None:
    """Jobs of one chunk, each with a life of its own, until 20,000 chunks are kept."""
    life, costs, n = Normal(2700.0, 600.0), Costs(exec_s=0.9, copy_s=0.1, start_s=60, end_s=5), 2500
    lives = life.sample(np.random.default_rng(0), 100_000)
    kept = lives > n * 1.0
    last = int(np.flatnonzero(np.cumsum(kept) == 20_000)[0])
    paid_s = float((60 + np.minimum(lives, n) + 5 * kept)[: last + 1].sum())
    assert total_time(life, costs, float(n), 20_000.0 * n) == pytest.approx(paid_s, rel=0.01)
    assert total_time(Normal(10.0, 1.0), costs, 1e6, 1e6) == math.inf


def test_bad_input_is_refused() -> None:
    life = Exponential(100.0)
    with pytest.raises(ChunkError, match="vertices must be finite and above 0"):
        stochastic_cost_as_printed(life, COSTS, 10, 0)
    with pytest.raises(ChunkError, match="n, the vertices of a chunk"):
        stochastic_cost_as_printed(life, COSTS, 0, 10)
    with pytest.raises(ChunkError, match="no candidates"):
        stochastic_chunk_as_printed(life, COSTS, np.zeros(0))
    with pytest.raises(ChunkError, match="mean_s and sd_s must be times"):
        normal_chunk_as_printed(2700.0, 0.0, COSTS, np.ones(1))
    with pytest.raises(ChunkError, match="vertices must be finite and above 0"):
        total_time(life, COSTS, 10, -1.0)
