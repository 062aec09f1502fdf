"""The measures of traffic against their definitions, counted with sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.base import PartRates, Placement, Rates
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import improvement, traffic
from gridml.placement.serving import serve

N, M = 9, 7
EDGES = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, M - 1)), max_size=40)


def graph_of(edges: list[tuple[int, int]]) -> Bipartite:
    return Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (N, M))


WORK, SIZE = [1, 2, 3, 4, 5, 6, 7, 8, 0], [10, 0, 30, 1, 2, 3, 4]


@given(
    EDGES,
    st.lists(st.integers(0, 3), min_size=N, max_size=N),
    st.lists(st.integers(0, 3), min_size=M, max_size=M),
    st.booleans(),
)
def test_figures_are_those_of_the_definitions(
    edges: list[tuple[int, int]], rows: list[int], columns: list[int], weighted: bool
) -> None:
    graph = graph_of(edges).weighted(WORK, SIZE) if weighted else graph_of(edges)
    work, size = (WORK, SIZE) if weighted else ([1] * N, [1] * M)

    def weight(of: set[int]) -> int:
        return sum(size[v] for v in of)

    placed, shares = Placement(4, np.array(rows, np.int32), np.array(columns, np.int32), ""), np.array([2, 1, 1, 4]) / 8
    found, star = traffic(graph, placed, shares=shares), traffic(graph, placed, "star")
    touches = [{v for u, v in edges if rows[u] == part} for part in range(4)]
    serves = [{v for v in range(M) if columns[v] == part} for part in range(4)]
    travelling = [
        weight(touches[i] - serves[i]) + sum(weight(serves[i] & touches[j]) for j in range(4) if j != i)
        for i in range(4)
    ]
    works = [sum(work[u] for u in range(N) if rows[u] == part) for part in range(4)]
    assert found.rows.tolist() == [rows.count(part) for part in range(4)]
    assert found.work.tolist() == works
    assert found.touched.tolist() == star.travelling.tolist() == [weight(each) for each in touches]
    assert star.touched.tolist() == found.touched.tolist()
    assert found.travelling.tolist() == travelling
    assert (found.largest_memory, found.largest_traffic) == (max(map(weight, touches)), max(travelling))
    assert found.total_traffic == sum(travelling)
    assert found.balance == pytest.approx(max(works[i] / shares[i] / sum(work) for i in range(4)))
    assert star.balance == pytest.approx(max(works) / (sum(work) / 4))
    assert found.duan == max(works) * max(travelling) and star.duan == max(works) * max(map(weight, touches))
    rates = Rates((2.0,), (8.0,))
    assert found.seconds(rates).tolist() == [travelling[i] + works[i] / 8 for i in range(4)]


@given(EDGES, st.lists(st.integers(0, 2), min_size=N, max_size=N), st.integers(0, 5))
def test_columns_lie_where_they_are_used_and_total_traffic_is_least(
    edges: list[tuple[int, int]], rows: list[int], seed: int
) -> None:
    graph, parts = graph_of(edges), np.array(rows, np.int32)
    columns = serve(graph, parts, 3, seed)
    found = traffic(graph, Placement(3, parts, columns, ""))
    users = [{rows[u] for u, v in edges if v == column} for column in range(M)]
    assert all(columns[v] in users[v] for v in range(M) if users[v])
    assert found.total_traffic == sum(2 * (len(each) - 1) for each in users if each)
    for v in range(M):  # no other part for a single column is better
        for part in users[v]:
            moved = columns.copy()
            moved[v] = part
            other = traffic(graph, Placement(3, parts, moved, ""))
            assert sorted(other.travelling)[::-1] >= sorted(found.travelling)[::-1]


def test_heavy_columns_and_slow_parts_count_when_columns_are_served() -> None:
    """Three parts touch all columns, and serve equal numbers of bytes, or fewer if they are slow."""
    sizes = np.random.default_rng(0).integers(1, 100, 300)
    graph = Bipartite.from_edges(np.repeat(np.arange(3), 300), np.tile(np.arange(300), 3)).weighted(columns=sizes)
    rows = np.arange(3, dtype=np.int32)
    found = traffic(graph, Placement(3, rows, serve(graph, rows, 3, 0), "")).travelling
    assert found.max() - found.min() <= 2 * sizes.max() < 0.02 * found.max()
    pace = PartRates(np.array([0.5, 0.5, 2.0]), np.zeros(3))
    slow = traffic(graph, Placement(3, rows, serve(graph, rows, 3, 0, pace), "")).travelling
    assert slow[2] < 0.7 * slow[:2].min()
    busy = PartRates(np.ones(3), np.array([0.0, 0.0, 2_000.0]))
    spared = traffic(graph, Placement(3, rows, serve(graph, rows, 3, 0, busy), "")).travelling
    assert abs(spared[2] + 2_000 - spared[0]) <= 2 * sizes.max()


def test_a_placement_of_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="rows must be 9 numbers of 2 parts"):
        traffic(graph_of([]), Placement(2, np.zeros(8, np.int32), np.zeros(M, np.int32), ""))
    with pytest.raises(ValueError, match="columns must be 7 numbers of 2 parts"):
        traffic(graph_of([]), Placement(2, np.zeros(N, np.int32), np.full(M, 2, np.int32), ""))


def test_improvement_is_relative_to_what_is_left() -> None:
    assert improvement(30, 10) == 200.0
    assert improvement(0, 0) == 0.0
    assert improvement(5, 0) == float("inf")
