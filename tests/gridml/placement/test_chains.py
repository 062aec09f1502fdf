"""Exact balance: without row weights, no part has more rows than its share allows, rounded up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gridml.placement import refined
from gridml.placement.auto import find
from gridml.placement.base import OBJECTIVES, Options, PartRates, Rates
from gridml.placement.bipartite import Bipartite
from gridml.placement.chains import border, cheapest_moves, exchange_in_cycles, fit_by_chains, move
from gridml.placement.parsa import SPREAD
from gridml.placement.quality import traffic
from gridml.placement.refine import Touches
from gridml.placement.refine_kernel import Aim, Bounds
from tests.support.graphs import grid, grouped

REFINING = pytest.mark.parametrize("name", ["auto", "refined", "multilevel"])
DUAN_EXAMPLE = ([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], [0, 1, 0, 1, 2, 2, 3, 4, 5, 2, 3, 4, 5])
"""Four rows and six columns: figure 4 of Duan, Wang and Wu."""


@REFINING
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 30),
    degree=st.integers(0, 8),
    parts=st.integers(1, 12),
    objective=st.sampled_from(OBJECTIVES),
    slack=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 99),
)
def test_no_part_has_more_rows_than_its_share_rounded_up(
    name: str, rows: int, columns: int, degree: int, parts: int, objective: str, slack: float, seed: int
) -> None:
    rng, parts = np.random.default_rng(seed), min(parts, rows)
    edges = rng.integers(0, rows, rows * degree), rng.integers(0, columns, rows * degree)
    graph = Bipartite.from_edges(*edges, (rows, columns))
    options = Options(seed, slack, objective, rates=Rates(tuple(1.0 + np.arange(parts))))
    largest = traffic(graph, find(name).place(graph, parts, options)).rows.max()
    assert largest <= np.ceil(round((1 + slack) * rows / parts, 6))


@REFINING
@pytest.mark.parametrize("shares", [(3.0, 1.0), (5.0, 2.0, 2.0), (1.0, 1.0, 1.0, 2.0)])
def test_shares_are_rounded_up(name: str, shares: tuple[float, ...]) -> None:
    graph = grouped(90, 60, 5)
    most = np.ceil(90 * np.array(shares) / sum(shares))
    assert (traffic(graph, find(name).place(graph, len(shares), Options(shares=shares))).rows <= most).all()


@REFINING
def test_the_example_of_duan_wang_and_wu_is_placed_evenly(name: str) -> None:
    graph = Bipartite.from_edges(*DUAN_EXAMPLE, (4, 6))
    found = traffic(graph, find(name).place(graph, 2, Options()))
    assert found.rows.tolist() == [2, 2] and sorted(found.touched) == [3, 4] and found.largest_traffic == 1


def test_twelve_rows_on_three_parts_are_four_each() -> None:
    for seed in range(10):
        graph = grouped(12, 9, 3, seed=seed)
        assert traffic(graph, find("refined").place(graph, 3, Options())).rows.tolist() == [4, 4, 4]


def test_chains_keep_the_counts_and_cost_less_than_direct_moves() -> None:
    """Stripes of a grid, of which the first is two rows too large and the last two too small: neighbours hand on."""
    side, parts = 16, 4
    graph = grid(side)
    rows = np.minimum((np.arange(side * side) - 2) // (side * side // parts), parts - 1).clip(0).astype(np.int32)
    tally, aim = Touches.of(graph, rows, parts), Aim(0)
    before = int(tally.touched.sum())
    fit_by_chains(tally, Bounds(1, 64), aim)
    assert tally.load.tolist() == [64] * 4
    _assert_counted(graph, tally)
    assert tally.touched.sum() <= before, "a row of the last stripe touches five columns in the first"
    cost, row = _cheapest(tally, aim)
    assert move(tally.counts, None, np.full(parts, 64), cost, row, 9) == 0, "no part is overfull"


@pytest.mark.parametrize("at_least", [0, 100])
def test_one_search_serves_chains_that_share_no_part_or_as_many_as_asked_for(at_least: int) -> None:
    side, parts = 16, 4
    graph = grid(side)
    rows = np.minimum(np.arange(side * side) // 60, parts - 1).astype(np.int32)  # 60, 60, 60 and 76 rows
    tally = Touches.of(graph, rows, parts)
    cost, row = _cheapest(tally, Aim(0))
    chains = move(tally.counts, tally.units, np.full(parts, 64), cost, row, at_least)
    assert chains == (1 if at_least == 0 else 12 - np.maximum(tally.load - 64, 0).sum()) and tally.load.sum() == 256
    _assert_counted(graph, tally)


@given(
    rows=st.integers(12, 80),
    parts=st.integers(2, 9),
    weighed=st.booleans(),
    paced=st.booleans(),
    power=st.sampled_from([0, 2, 96]),
    seed=st.integers(0, 99),
)
def test_cycles_keep_sizes_and_lower_the_aim(
    rows: int, parts: int, weighed: bool, paced: bool, power: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    graph = grouped(rows, 30, 4, seed=seed)
    if weighed:
        graph = replace(graph, column_weights=rng.integers(0, 9, graph.columns))
    pace = PartRates(rng.uniform(0.5, 2.0, parts), rng.uniform(0.0, 9.0, parts)) if paced else None
    tally = Touches.of(graph, rng.permutation(np.arange(rows) % parts).astype(np.int32), parts, pace=pace)
    aim = Aim(power, 0.1)
    load, before = tally.load.copy(), tally.worth(aim)
    exchange_in_cycles(tally, aim)
    assert np.array_equal(tally.load, load) and tally.worth(aim) <= before * (1 + 1e-9)
    _assert_counted(graph, tally)


def test_two_parts_exchange_two_rows() -> None:
    """Two groups of three rows, whose rows of equal columns are in one part but for one of each."""
    graph = Bipartite.from_edges(np.repeat(np.arange(6), 2), np.tile([0, 1, 2, 3], 3)[[0, 1] * 3 + [2, 3] * 3], (6, 4))
    tally = Touches.of(graph, np.array([0, 0, 1, 0, 1, 1], np.int32), 2)
    assert tally.touched.tolist() == [4, 4]
    exchange_in_cycles(tally, Aim(0))
    assert tally.touched.tolist() == [2, 2] and tally.load.tolist() == [3, 3]


def test_cycles_win_back_what_chains_cost_the_largest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """625 rows on each of 64 parts: chains give rows to parts that have fewer because they touch most."""
    graph = grid(200)

    def largest() -> int:
        return traffic(graph, find("refined").place(graph, 64, Options())).largest_memory

    found = largest()
    monkeypatch.setattr(refined, "exchange_in_cycles", lambda tally, aim: None)
    assert found < 0.99 * largest()


def _cheapest(tally: Touches, aim: Aim) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    return cheapest_moves(tally.counts, tally.units, tally.pace, SPREAD, aim, border(tally.counts))


def _assert_counted(graph: Bipartite, tally: Touches) -> None:
    recounted = Touches.of(graph, tally.rows, len(tally.load))
    assert np.array_equal(recounted.touched, tally.touched) and np.array_equal(recounted.load, tally.load)
    assert np.array_equal(recounted.counts.state, tally.counts.state)


def test_a_move_costs_what_it_changes() -> None:
    graph, aim = grouped(40, 30, 4), Aim(0)
    rows = (np.arange(40) % 3).astype(np.int32)
    tally = Touches.of(graph, rows, 3)
    cost, best = _cheapest(tally, aim)
    for a in range(3):
        for b in {0, 1, 2} - {a}:
            after = []
            for row in np.flatnonzero(rows == a):
                moved = rows.copy()
                moved[row] = b
                after.append(Touches.of(graph, moved, 3).touched.sum() - tally.touched.sum())
            assert cost[a, b] == min(after) and rows[best[a, b]] == a
