"""Clusters of rows, and their gain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement import multilevel
from gridml.placement.base import Method, Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.bisection import SHRINK, coarsen
from gridml.placement.multilevel import Multilevel, MultilevelOptions
from gridml.placement.parsa import Parsa
from gridml.placement.quality import traffic
from gridml.placement.refine import Touches
from gridml.placement.refined import Refined
from tests.support.graphs import grid, grouped


@given(
    edges=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 9)), max_size=90),
    largest=st.integers(1, 6),
    fewest=st.integers(1, 15),
    seed=st.integers(0, 9),
)
def test_a_cluster_touches_what_all_its_rows_did(
    edges: list[tuple[int, int]], largest: int, fewest: int, seed: int
) -> None:
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (15, 10))
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 15).astype(np.int32)
    smaller, joined, became = coarsen(graph, sizes, largest, rng, fewest=fewest)
    assert np.bincount(became, sizes).tolist() == joined.tolist()
    assert smaller.rows >= max(fewest, 15 // SHRINK) and joined.max() <= max(largest, sizes.max())
    assert not np.any((joined > largest) & (np.bincount(became) > 1))
    for row in range(smaller.rows):
        of = [set(graph.neighbours[slice(*graph.offsets[u : u + 2])].tolist()) for u in np.flatnonzero(became == row)]
        got = smaller.neighbours[slice(*smaller.offsets[row : row + 2])].tolist()
        assert sorted(got) == sorted(set().union(*of))
    dealt = rng.integers(0, 3, smaller.rows).astype(np.int32)
    fine, coarse = Touches.of(graph, dealt[became], 3, sizes), Touches.of(smaller, dealt, 3, joined)
    assert fine.touched.tolist() == coarse.touched.tolist() and fine.load.tolist() == coarse.load.tolist()


def test_rows_that_share_rare_columns_are_joined() -> None:
    """Every row touches column 0; only rows 2i and 2i + 1 touch column i + 1."""
    rows = np.arange(20)
    graph = Bipartite.from_edges([*rows, *rows], [*np.zeros(20, int), *(rows // 2 + 1)])
    _, joined, became = coarsen(graph, np.ones(20, np.int32), 2, np.random.default_rng(0))
    assert became.tolist() == (rows // 2).tolist() and joined.tolist() == [2] * 10


def test_groups_of_similar_rows_are_never_split() -> None:
    """Ten groups of three rows, which also share a column with the next group: a group of three is never split."""
    rows = np.arange(30)
    own, chain = rows // 3, 10 + (rows + 1) // 3 % 10
    graph = Bipartite.from_edges([*rows, *rows, *rows], [*own, *(20 + own), *chain])
    for seed in range(10):
        _, joined, became = coarsen(graph, np.ones(30, np.int32), 3, np.random.default_rng(seed), fewest=10)
        assert all(len(set(own[became == cluster])) == 1 for cluster in range(len(joined)))


def test_rows_that_share_only_a_common_column_are_joined() -> None:
    """Columns of 300 rows are not searched for a partner, but two rows with the same columns still find each other."""
    rows = np.arange(300)
    graph = Bipartite.from_edges([*rows, *rows], [*np.zeros(300, int), *(1 + rows % 2)])
    smaller, _, became = coarsen(graph, np.ones(300, np.int32), 2, np.random.default_rng(0))
    assert smaller.rows == 150 and smaller.edges == 300
    assert all(len(set(np.flatnonzero(became == pair) % 2)) == 1 for pair in range(150))


@pytest.mark.parametrize("method", [Refined(), Multilevel()], ids=lambda method: method.name)
def test_a_huge_row_finds_its_part(method: Method) -> None:
    """One row touches a third of the columns: it must not oscillate between parts that are light without it."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 40, 2000)
    rows = np.repeat(np.arange(2000), 6)
    columns = group[rows] * 50 + rng.integers(0, 50, len(rows))
    graph = Bipartite.from_edges([*rows, *[2000] * 600], [*columns, *rng.choice(2000, 600, replace=False)])
    before, after = (
        [traffic(graph, each.place(graph, 8, Options(seed=seed))) for seed in range(3)] for each in (Parsa(), method)
    )
    assert sum(each.largest_memory for each in after) < 0.98 * sum(each.largest_memory for each in before)
    assert sum(each.total_traffic for each in after) < 0.9 * sum(each.total_traffic for each in before)


def test_groups_that_single_moves_do_not_find() -> None:
    """Many small groups of rows in a chain: only moves of whole groups help."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(3000), 8)
    graph = Bipartite.from_edges(rows, (rows // 10 * 7 + rng.integers(0, 12, len(rows))) % 2100, (3000, 2100))
    one, other = (
        [traffic(graph, method.place(graph, 8, Options(seed=seed))) for seed in range(2)]
        for method in (Multilevel(), Refined())
    )
    assert sum(each.total_traffic for each in one) < 0.9 * sum(each.total_traffic for each in other)
    assert sum(each.largest_memory for each in one) < sum(each.largest_memory for each in other)
    assert all(each.rows.max() <= 3000 / 8 + 1 for each in one)


def test_many_parts_of_a_mesh_are_pieces_of_it() -> None:
    """A point of a grid touches itself and its neighbours: 64 squares of 56 points touch about 87 each."""
    graph = grid(60)
    found = traffic(graph, Multilevel().place(graph, 64, Options()))
    assert found.largest_memory <= 88 and found.total_traffic <= 3300, "94 and 3,900 without halving"


def test_it_says_when_the_answer_is_that_of_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = grouped(300, 150, 6)
    flat = Refined().place(graph, 3, Options(seed=1))
    assert "refined" not in Multilevel().place(graph, 3, Options(seed=1)).why
    monkeypatch.setattr(multilevel, "best", lambda tries, *_: len(tries) - 1)
    placed = Multilevel().place(graph, 3, Options(seed=1))
    assert placed.rows.tolist() == flat.rows.tolist()
    assert placed.why.startswith("multilevel, ") and placed.why.endswith(f"; refined was better: {flat.why}")


def test_options_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="expected a number from 0"):
        MultilevelOptions(heat=-1.0)


def test_columns_without_weight_bring_no_rows_together() -> None:
    """Additional columns without weight do not change the clusters."""
    rng = np.random.default_rng(4)
    own = np.concatenate([40 * (row % 10) + rng.choice(40, 6, replace=False) for row in range(500)])
    rows, light = np.repeat(np.arange(500), 6), 400 + rng.permutation(500) // 10
    plain = Bipartite.from_edges(rows, own, (500, 450))
    both = Bipartite.from_edges(np.append(rows, np.arange(500)), np.append(own, light), (500, 450))
    weighted = both.weighted(columns=(np.arange(450) < 400).astype(int))
    one = np.ones(500, np.int32)
    joined = [coarsen(each, one, 10, np.random.default_rng(0))[2].tolist() for each in (plain, weighted, both)]
    assert joined[0] == joined[1] != joined[2]
