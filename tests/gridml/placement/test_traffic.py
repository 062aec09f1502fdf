"""The checker against the definitions, counted with sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.base import Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.serving import serve
from gridml.placement.traffic import improvement, traffic

N, M = 9, 7
EDGES = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, M - 1)), max_size=40)


def graph_of(edges: list[tuple[int, int]]) -> Bipartite:
    return Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (N, M))


@given(EDGES, st.lists(st.integers(0, 3), min_size=N, max_size=N), st.lists(st.integers(0, 3), min_size=M, max_size=M))
def test_figures_are_those_of_the_definitions(
    edges: list[tuple[int, int]], rows: list[int], columns: list[int]
) -> None:
    found = traffic(graph_of(edges), Placement(4, np.array(rows, np.int32), np.array(columns, np.int32), ""))
    touches = [{v for u, v in edges if rows[u] == part} for part in range(4)]
    serves = [{v for v in range(M) if columns[v] == part} for part in range(4)]
    travelling = [
        len(touches[i] - serves[i]) + sum(len(serves[i] & touches[j]) for j in range(4) if j != i) for i in range(4)
    ]
    assert found.touched.tolist() == [len(each) for each in touches]
    assert found.travelling.tolist() == travelling
    assert (found.largest_memory, found.largest_traffic) == (max(map(len, touches)), max(travelling))
    assert found.total_traffic == sum(travelling)
    assert found.balance == pytest.approx(max(rows.count(part) for part in range(4)) / (N / 4))


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
    for v in range(M):  # nobody does better by serving one column elsewhere
        for part in users[v]:
            moved = columns.copy()
            moved[v] = part
            other = traffic(graph, Placement(3, parts, moved, ""))
            assert sorted(other.travelling)[::-1] >= sorted(found.travelling)[::-1]


def test_a_placement_of_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="rows must be 9 numbers of 2 parts"):
        traffic(graph_of([]), Placement(2, np.zeros(8, np.int32), np.zeros(M, np.int32), ""))
    with pytest.raises(ValueError, match="columns must be 7 numbers of 2 parts"):
        traffic(graph_of([]), Placement(2, np.zeros(N, np.int32), np.full(M, 2, np.int32), ""))


def test_improvement_is_relative_to_what_is_left() -> None:
    assert improvement(30, 10) == 200.0
    assert improvement(0, 0) == 0.0
    assert improvement(5, 0) == float("inf")
