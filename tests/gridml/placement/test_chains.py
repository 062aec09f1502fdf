"""Exact balance: without row weights, no part has more rows than its share allows, rounded up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.auto import find
from gridml.placement.base import OBJECTIVES, Options, Rates
from gridml.placement.bipartite import Bipartite
from gridml.placement.chains import cheapest_moves, fit_by_chains, move
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
    recounted = Touches.of(graph, tally.rows, parts)
    assert np.array_equal(recounted.touched, tally.touched) and np.array_equal(
        recounted.counts.state, tally.counts.state
    )
    assert tally.touched.sum() <= before, "a row of the last stripe touches five columns in the first"
    cost, row = cheapest_moves(tally.counts, None, None, aim)
    assert move(tally.counts, None, np.full(parts, 64), cost, row, 9) == 0, "no part is overfull"


def test_a_move_costs_what_it_changes() -> None:
    graph, aim = grouped(40, 30, 4), Aim(0)
    rows = (np.arange(40) % 3).astype(np.int32)
    tally = Touches.of(graph, rows, 3)
    cost, best = cheapest_moves(tally.counts, tally.units, None, aim)
    for a in range(3):
        for b in {0, 1, 2} - {a}:
            after = []
            for row in np.flatnonzero(rows == a):
                moved = rows.copy()
                moved[row] = b
                after.append(Touches.of(graph, moved, 3).touched.sum() - tally.touched.sum())
            assert cost[a, b] == max(0, min(after)) and rows[best[a, b]] == a
