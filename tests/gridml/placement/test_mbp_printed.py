"""Multilevel bipartite partitioning as printed: what is merged, and the order of moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.base import Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.mbp_printed import PrintedMbp, PrintedMbpOptions, at_random, merged, refine
from gridml.placement.quality import traffic
from tests.gridml.placement.test_tsh_printed import random_graph


def volume(graph: Bipartite, rows: list[int], home: list[int]) -> int:
    """Return the communication volume by its definition: the columns that each part needs and does not serve."""
    pairs = zip(np.repeat(rows, graph.degrees).tolist(), graph.neighbours.tolist(), strict=True)
    return sum(home[column] != part for part, column in set(pairs))


def naive(graph: Bipartite, rows: list[int], home: list[int], parts: int) -> int:
    """Move the row or column with the largest gain, once each, while there is a gain. Return the number of moves."""
    free = [(rows, row) for row in range(graph.rows)] + [(home, column) for column in range(graph.columns)]
    moves = 0
    while free:
        now, best, chosen = volume(graph, rows, home), 0, None
        for sides, at in free:
            own = sides[at]
            for part in range(parts):
                sides[at] = part
                gain = now - volume(graph, rows, home)
                if gain > best:
                    best, chosen = gain, (sides, at, part)
            sides[at] = own
        if chosen is None:
            return moves
        sides, at, part = chosen
        sides[at] = part
        free = [each for each in free if each[0] is not sides or each[1] != at]
        moves += 1
    return moves


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_moves_are_those_of_a_naive_implementation(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Bipartite.from_edges(rng.integers(0, 8, 24), rng.integers(0, 7, 24), (8, 7))
    rows, home = at_random(graph, parts, rng)
    expected = rows.tolist(), home.tolist()
    moves = refine(graph, rows, home, np.full(parts, 8))
    assert moves == naive(graph, *expected, parts)
    assert (rows.tolist(), home.tolist()) == expected


def test_theorem_4_each_datum_and_parameter_moves_at_most_once_and_the_volume_falls() -> None:
    for seed in range(10):
        graph, rng = random_graph(seed), np.random.default_rng(seed)
        rows, home = at_random(graph, 8, rng)
        before = volume(graph, rows.tolist(), home.tolist())
        moves = refine(graph, rows, home, np.full(8, 36))
        assert 0 < moves <= graph.rows + graph.columns
        assert volume(graph, rows.tolist(), home.tolist()) <= before - moves
        assert np.bincount(rows).max() <= 36


def test_only_data_with_a_common_parameter_are_merged_and_parameters_with_a_common_datum() -> None:
    graph = random_graph(1)
    weighted = graph.weighted(np.ones(240), np.ones(240))
    coarser, (row_of, column_of) = merged(weighted, np.random.default_rng(0))
    assert 120 <= coarser.rows < 140 and coarser.works.sum() == 240
    assert coarser.columns >= 120 and coarser.sizes.sum() == 240
    for side, group in ((graph, row_of), (graph.transposed, column_of)):
        for number in range(group.max() + 1):
            members = np.flatnonzero(group == number)
            assert len(members) in (1, 2)
            touched = [set(side.neighbours[side.offsets[u] : side.offsets[u + 1]].tolist()) for u in members]
            assert len(members) == 1 or touched[0] & touched[1]
    edges = set(zip(row_of[np.repeat(np.arange(240), graph.degrees)], column_of[graph.neighbours], strict=True))
    assert coarser.edges == len(edges)


def test_levels_are_better_than_chance_and_parts_even() -> None:
    graph = random_graph(1, 2400)
    placed = PrintedMbp().place(graph, 8, PrintedMbpOptions(coarsest=20))
    assert "5 levels" in placed.why
    chance = Placement(8, *at_random(graph, 8, np.random.default_rng(0)), "")
    assert traffic(graph, placed).total_traffic < 0.6 * traffic(graph, chance).total_traffic
    assert traffic(graph, placed).rows.tolist() == [300] * 8


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="has 0 rows"):
        PrintedMbpOptions(coarsest=0)
    assert PrintedMbp().place(Bipartite.from_edges([], [], (3, 0)), 2, Options()).rows.max() == 1
