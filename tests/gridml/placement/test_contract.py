"""What holds for every method of placement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.base import Method, Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.registry import METHODS, find
from gridml.placement.traffic import traffic
from gridml.testing.graphs import grouped, uneven

EVERY = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))


def same(one: Placement, other: Placement) -> bool:
    return bool(np.array_equal(one.rows, other.rows) and np.array_equal(one.columns, other.columns))


@EVERY
@given(
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 8)), max_size=60),
    parts=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_every_row_and_column_has_a_part(method: Method, edges: list[tuple[int, int]], parts: int, seed: int) -> None:
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (12, 9))
    placed = method.place(graph, parts, Options(seed=seed))
    found = traffic(graph, placed)
    assert placed.rows.dtype == placed.columns.dtype == np.int32
    assert found.rows.sum() == 12 and found.rows.max() <= -(-12 // parts) + 1
    assert same(placed, method.place(graph, parts, Options(seed=seed))), "the same seed gives the same placement"


@EVERY
def test_more_parts_than_bits_of_a_word(method: Method) -> None:
    graph = grouped(900, 400, 6)
    placed = method.place(graph, 130, Options())
    assert set(placed.rows.tolist()) == set(range(130))
    assert traffic(graph, placed).rows.max() <= -(-900 // 130) + 1


@EVERY
def test_one_huge_row_and_rows_without_any(method: Method) -> None:
    huge = Bipartite.from_edges([3] * 5000 + [5, 6, 6], [*range(5000), 1, 2, 3], (8, 5000))
    assert traffic(huge, method.place(huge, 3, Options())).touched.max() >= 5000
    empty = Bipartite.from_edges([], [], (5, 3))
    assert traffic(empty, method.place(empty, 5, Options())).total_traffic == 0


@EVERY
@pytest.mark.parametrize(("rows", "parts", "said"), [(0, 1, "no rows"), (3, 4, "3 rows.* 4 parts"), (3, 0, "0 parts")])
def test_what_cannot_be_placed_is_refused(method: Method, rows: int, parts: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        method.place(Bipartite.from_edges([], [], (rows, 2)), parts, Options())


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("random")])
def test_groups_are_found(name: str) -> None:
    """Rows of a group touch the same columns, so a method that is one nearly halves the traffic; one that sees each row
    once may save a third."""
    graph = grouped(4000, 2000, 12)
    best, chance = (traffic(graph, find(each).place(graph, 4, Options())) for each in (name, "random"))
    assert best.largest_memory < (0.8 if name == "greedy" else 0.75) * chance.largest_memory
    assert best.total_traffic < (0.67 if name == "greedy" else 0.55) * chance.total_traffic


def test_a_name_that_no_method_has() -> None:
    with pytest.raises(UsageError, match="expected random"):
        find("metis")


@pytest.mark.parametrize("name", ["refined", "multilevel", "auto"])
def test_each_objective_has_its_way(name: str) -> None:
    """On a graph where they are at odds: a third of the rows touch far more columns than the others."""
    graph, found = uneven(3000, 2000), {}
    for each in ("memory", "traffic", "total"):
        trials = [traffic(graph, find(name).place(graph, 6, Options(seed, objective=each))) for seed in range(3)]
        found[each] = [
            np.mean([getattr(trial, figure) for trial in trials])
            for figure in ("largest_memory", "largest_traffic", "total_traffic")
        ]
    assert found["total"][2] < found["memory"][2] and found["traffic"][1] < found["memory"][1]
    assert name == "refined" or found["memory"][0] < found["total"][0]


def test_an_objective_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="the objective is 'speed'; expected memory, traffic, total"):
        Options(objective="speed")
