"""Recursive bisection of rows, and pairwise refinement of parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.base import TOTAL, Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.bisection import bisect, coarsen, refine_pairs
from gridml.placement.bisection_kernel import grow, refine_bisection
from gridml.placement.multilevel import Multilevel
from gridml.placement.quality import traffic
from gridml.placement.refine import Touches
from gridml.placement.refined import Refined

EDGES = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 9)), max_size=90)


def graph_of(edges: list[tuple[int, int]]) -> Bipartite:
    return Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (15, 10))


def cut(graph: Bipartite, side: np.ndarray, units: np.ndarray) -> int:
    """Return the number of columns that both sides touch, counted by sets."""
    touched = [
        {int(v) for u in np.flatnonzero(side == a) for v in graph.neighbours[slice(*graph.offsets[u : u + 2])]}
        for a in range(2)
    ]
    return int(sum(units[v] for v in touched[0] & touched[1]))


@given(edges=EDGES, seed=st.integers(0, 99), patience=st.sampled_from([2, 300]))
def test_mending_never_costs_and_knows_what_is_cut(edges: list[tuple[int, int]], seed: int, patience: int) -> None:
    graph, rng = graph_of(edges), np.random.default_rng(seed)
    units, sizes, side = rng.integers(1, 9, 10), rng.integers(1, 4, 15), rng.integers(0, 2, 15).astype(np.int8)
    most = np.bincount(side, sizes, minlength=2).astype(np.int64) + rng.integers(0, 4)
    before = cut(graph, side, units)
    found = refine_bisection(
        graph.both_sides, units, sizes, side, most, 4,
        patience,
    )  # fmt: skip
    assert found == cut(graph, side, units) <= before
    assert (np.bincount(side, sizes, minlength=2) <= most).all()


def test_mending_goes_over_a_loss() -> None:
    """Two interleaved chains of four rows: no single move gains, because balance needs a second one."""
    columns = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    rows = [0, 1, 1, 2, 2, 3, 4, 5, 5, 6, 6, 7]
    graph = Bipartite.from_edges(rows, columns, (8, 6))
    side, one = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int8), np.ones(8, np.int64)
    units, most = np.ones(6, np.int64), np.array([5, 5])
    by = graph.both_sides
    assert refine_bisection(by, units, one, side, most, 4, 300) == 0


@given(edges=EDGES, seed=st.integers(0, 99))
def test_mending_is_the_same_in_any_unit_of_work(edges: list[tuple[int, int]], seed: int) -> None:
    graph, rng = graph_of(edges), np.random.default_rng(seed)
    by, units = graph.both_sides, rng.integers(1, 9, 10)
    sizes, drawn = rng.integers(1, 4, 15), rng.integers(0, 2, 15).astype(np.int8)
    most = np.bincount(drawn, sizes, minlength=2).astype(np.int64) + rng.integers(0, 4)
    sides = []
    for unit in (1, 2**46):
        sides.append(drawn.copy())
        refine_bisection(by, units, unit * sizes, sides[-1], unit * most, 4, 300)
    assert sides[0].tolist() == sides[1].tolist()


def test_a_side_that_is_too_large_is_mended() -> None:
    graph, side = graph_of([(u, u % 10) for u in range(15)]), np.zeros(15, np.int8)
    by = graph.both_sides
    one = np.ones(15, np.int64)
    refine_bisection(by, np.ones(10, np.int64), one, side, np.array([8, 8]), 4, 300)
    assert np.bincount(side).max() <= 8


@given(edges=EDGES, seed=st.integers(0, 9), wanted=st.integers(1, 15), anywhere=st.booleans())
def test_halves_grow_to_what_is_wanted(edges: list[tuple[int, int]], seed: int, wanted: int, anywhere: bool) -> None:
    graph = graph_of(edges)
    order = np.random.default_rng(seed).permutation(15).astype(np.int32)
    by, one = graph.both_sides, np.ones(15, np.int64)
    side = grow(by, np.ones(10, np.int64), one, order, wanted, anywhere)
    assert np.count_nonzero(side == 0) == wanted and side[order[0]] == 0


@given(edges=EDGES, parts=st.integers(1, 15), seed=st.integers(0, 9))
def test_no_part_is_left_without_rows(edges: list[tuple[int, int]], parts: int, seed: int) -> None:
    graph, rng = graph_of(edges), np.random.default_rng(seed)
    sizes = rng.integers(1, 9, 15)
    rows = bisect(graph, sizes, np.full(parts, 1 / parts), 0.03, rng)
    assert set(rows.tolist()) == set(range(parts))
    before = Touches.of(graph, rows, parts).touched.sum()
    most = np.bincount(rows, sizes, minlength=parts).astype(np.int64) + 9
    refine_pairs(graph, sizes, rows, most)
    assert set(rows.tolist()) == set(range(parts))
    assert Touches.of(graph, rows, parts).touched.sum() <= before
    assert (np.bincount(rows, sizes, minlength=parts) <= most).all()


def test_plain_groups_are_found() -> None:
    """Twelve disjoint groups for parts of unequal shares, and as many rows as those."""
    rng, shares = np.random.default_rng(0), np.array([1, 2, 1, 2, 3, 3]) / 12
    group = rng.permutation(np.repeat(np.arange(12), 50))
    rows = np.repeat(np.arange(600), 6)
    graph = Bipartite.from_edges(rows, group[rows] * 30 + rng.integers(0, 30, len(rows)), (600, 360))
    found = bisect(graph, np.ones(600, np.int64), shares, 0.0, rng)
    assert np.bincount(found).tolist() == (600 * shares).round().astype(int).tolist()
    assert Touches.of(graph, found, 6).touched.sum() == 360


@given(edges=EDGES, seed=st.integers(0, 9))
def test_rows_of_two_parts_are_not_joined(edges: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    within = rng.integers(0, 3, 15).astype(np.int32)
    _, _, became = coarsen(graph_of(edges), np.ones(15, np.int32), 4, rng, within)
    assert all(len(set(within[became == cluster].tolist())) == 1 for cluster in range(became.max() + 1))


@given(edges=EDGES, parts=st.integers(1, 6), seed=st.integers(0, 3))
def test_multilevel_never_has_a_larger_memory_than_refined(edges: list[tuple[int, int]], parts: int, seed: int) -> None:
    graph, options = graph_of(edges), Options(seed=seed)
    one, other = (traffic(graph, method.place(graph, parts, options)) for method in (Multilevel(), Refined()))
    assert one.largest_memory <= other.largest_memory


def test_groups_of_groups_are_found() -> None:
    """Many small groups, of which four at a time share a few columns: for the total traffic they belong together."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(32), 75))
    rows = np.repeat(np.arange(2400), 6)
    columns = np.where(
        rng.random(len(rows)) < 0.9,
        group[rows] * 40 + rng.integers(0, 40, len(rows)),
        1280 + group[rows] // 4 * 40 + rng.integers(0, 40, len(rows)),
    )
    graph = Bipartite.from_edges(rows, columns, (2400, 1600))
    assert traffic(graph, Multilevel().place(graph, 8, Options(objective=TOTAL))).total_traffic == 0
