"""Columns with a former part: they stay, or move if that balances the traffic."""

from __future__ import annotations

import numpy as np

from gridml.placement.base import Placement
from gridml.placement.quality import traffic
from gridml.placement.repartition import keep_serving
from gridml.placement.serving import serve, sets_of
from tests.support.graphs import grouped

GRAPH = grouped(600, 400, 8)
ROWS = (np.arange(600) % 6).astype(np.int32)
SETS = sets_of(GRAPH, ROWS, 6)


def most(columns: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> int:
    return traffic(GRAPH, Placement(6, ROWS, columns, "")).largest_traffic


def test_columns_that_stay_are_made_up_for_by_the_others() -> None:
    before = np.where(np.arange(400) < 50, 3, -1).astype(np.int32)  # the fourth part serves an eighth of all
    served = keep_serving(SETS, 6, 0, before, stay=True)
    assert (served[:50] == 3).all() and served.min() >= 0
    free = serve(GRAPH, ROWS, 6, 0)
    unaware = np.where(before < 0, free, before)
    assert most(served) < 0.95 * most(unaware) and most(served) <= 1.05 * most(free)


def test_columns_that_may_move_do_so_where_it_evens_the_traffic_out() -> None:
    free = serve(GRAPH, ROWS, 6, 0)
    assert np.array_equal(keep_serving(SETS, 6, 1, free, stay=False), free), "they are even already"
    crowded = np.full(400, 3, np.int32)
    moved = keep_serving(SETS, 6, 0, crowded, stay=False)
    assert most(moved) <= 1.02 * most(free) < 0.5 * most(crowded)
