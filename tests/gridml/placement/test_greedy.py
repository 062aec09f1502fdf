"""Greedy placement: one row after the other, each to the part with its columns."""

from __future__ import annotations

import numpy as np

from gridml.placement.base import Options, room
from gridml.placement.bipartite import Bipartite
from gridml.placement.greedy import Greedy
from gridml.placement.quality import traffic


def test_twins_share_a_part_whatever_the_order() -> None:
    """Each 5 rows have 40 columns of their own: a row goes to the part with the other rows of its columns."""
    rows = np.repeat(np.arange(20), 10)
    graph = Bipartite.from_edges(rows, rows // 5 * 10 + np.tile(np.arange(10), 20), (20, 40))
    for seed in range(5):
        placed = Greedy().place(graph, 4, Options(seed=seed, slack=1.0))
        assert [len(set(placed.rows[first : first + 5].tolist())) for first in range(0, 20, 5)] == [1, 1, 1, 1]


def test_parts_are_even_without_slack_and_no_larger_than_it_allows() -> None:
    alike = Bipartite.from_edges(np.arange(103), np.zeros(103, int))  # one column: any part but the first is dearer
    even, uneven = (
        traffic(alike, Greedy().place(alike, 10, Options(slack=slack))).rows.tolist() for slack in (0.0, 0.5)
    )
    assert sorted(even) == [10] * 7 + [11] * 3
    assert max(uneven) <= 1.5 * 10.3


def test_room_is_for_every_row_and_no_part_needs_to_be_empty() -> None:
    for rows, parts, slack, each, extra in ((103, 10, 0.0, 10, 3), (103, 10, 0.5, 15, 0), (4, 4, 0.0, 1, 0)):
        most, one_more = room(rows, parts, slack)
        assert most.tolist() == [each] * parts and one_more == extra
    most, one_more = room(11, 3, 0.0, np.array([0.5, 0.3, 0.2]))
    assert (most.tolist(), one_more) == ([5, 3, 2], 1)
