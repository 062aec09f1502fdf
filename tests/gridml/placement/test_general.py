"""General graphs as bipartite ones: examples by hand, and properties."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.auto import find
from gridml.placement.base import Options
from gridml.placement.bipartite import Bipartite, as_bipartite, both_ways, cliques, edges, vertices
from gridml.placement.quality import traffic

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7)), max_size=40)
# A triangle 0, 1, 2 with a tail 2 - 3, one edge of it said twice, a loop, and a vertex 4 of which there is only that.
TAILED = Bipartite.from_edges([0, 1, 2, 0, 2, 4], [1, 0, 1, 2, 3, 4], (5, 5))


def rows_of(graph: Bipartite) -> list[list[int]]:
    return [graph.neighbours[a:b].tolist() for a, b in zip(graph.offsets[:-1], graph.offsets[1:], strict=True)]


def test_a_triangle_with_a_tail() -> None:
    assert rows_of(both_ways(TAILED)) == [[1, 2], [0, 2], [0, 1, 3], [2], []]
    assert rows_of(vertices(TAILED)) == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [2, 3], [4]]
    assert rows_of(edges(TAILED)) == [[0, 1], [0, 2], [1, 2], [2, 3]]
    assert rows_of(cliques(TAILED)) == [[0, 1, 2], [2, 3], [4]]
    assert as_bipartite(TAILED, "bipartite") is TAILED


@given(PAIRS)
def test_rows_are_what_they_are_said_to_be(pairs: list[tuple[int, int]]) -> None:
    graph = Bipartite.from_edges([u for u, _ in pairs], [v for _, v in pairs], (10, 8))
    joined = {frozenset(pair) for pair in pairs if pair[0] != pair[1]}
    around = [{v for v in range(10) if u == v or frozenset((u, v)) in joined} for u in range(10)]
    assert [set(row) for row in rows_of(vertices(graph))] == around
    assert [tuple(row) for row in rows_of(edges(graph))] == sorted(tuple(sorted(pair)) for pair in joined)
    found = rows_of(cliques(graph))
    assert {frozenset(pair) for row in found for pair in combinations(row, 2)} == joined
    assert set().union(*found) == set(range(10)), "a vertex without edges is there, too"
    for row in found:
        assert set.intersection(*(around[u] for u in row)) == set(row), "all are neighbours, and none can be added"
    assert len(found) <= len(joined) + sum(len(near) == 1 for near in around)
    for kind in (vertices, edges, cliques):
        assert kind(graph).columns == 10 and kind(graph).offsets.dtype == np.int64


def test_a_clique_larger_than_the_room_that_was_made_for_it() -> None:
    """Sixty vertices, each adjacent to all but two: the cliques cover most edges many times."""
    ring = [(u, v) for u, v in combinations(range(60), 2) if v - u not in (1, 59)]
    graph = Bipartite.from_edges([u for u, _ in ring], [v for _, v in ring], (60, 60))
    found = rows_of(cliques(graph))
    assert {pair for row in found for pair in combinations(row, 2)} == set(ring)


@pytest.mark.parametrize("kind", ["vertices", "edges", "cliques"])
def test_communities_are_kept_together(kind: str) -> None:
    rng = np.random.default_rng(0)
    u = rng.integers(0, 800, 6000)
    v = np.where(rng.random(6000) < 0.95, u // 200 * 200 + rng.integers(0, 200, 6000), rng.integers(0, 800, 6000))
    graph = as_bipartite(Bipartite.from_edges(u, v, (800, 800)), kind)
    placed, chance = (traffic(graph, find(name).place(graph, 4, Options())) for name in ("multilevel", "random"))
    assert placed.largest_memory < 0.75 * chance.largest_memory


def test_what_cannot_be_taken_so_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the kind of rows is 'nodes'; expected bipartite, vertices, edges, cliques"):
        as_bipartite(TAILED, "nodes")
    with pytest.raises(UsageError, match=r"no edge between two vertices; expected one with edges for rows as cliques"):
        as_bipartite(Bipartite.from_edges([1], [1]), "cliques")
