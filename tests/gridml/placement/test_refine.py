"""Moves of rows between parts, and the counts that follow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.base import Options, PartRates, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa import Parsa
from gridml.placement.quality import traffic
from gridml.placement.refine import Touches, fit, sizes
from gridml.placement.refine_kernel import Aim, Bounds
from gridml.placement.refined import EVENING, Refined, RefinedOptions

EDGES = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 9)), max_size=90)


def graph_of(edges: list[tuple[int, int]]) -> Bipartite:
    return Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (15, 10))


def recounted(graph: Bipartite, rows: np.ndarray, parts: int) -> list[int]:
    sizes = np.ones(10, np.int64) if graph.column_weights is None else graph.column_weights
    return [
        sum(
            sizes[v]
            for v in {
                int(v) for u in np.flatnonzero(rows == part) for v in graph.neighbours[slice(*graph.offsets[u : u + 2])]
            }
        )
        for part in range(parts)
    ]


@given(
    edges=EDGES,
    parts=st.sampled_from([2, 3, 5, 70]),
    heat=st.sampled_from([0.0, 5.0]),
    weighted=st.booleans(),
    seed=st.integers(0, 9),
)
def test_counts_are_those_of_a_brute_force(
    edges: list[tuple[int, int]], parts: int, heat: float, weighted: bool, seed: int
) -> None:
    graph, rng = graph_of(edges), np.random.default_rng(seed)
    if weighted:
        graph = graph.weighted(np.arange(15), np.arange(10) ** 3)
    dealt = rng.integers(0, parts, 15).astype(np.int32)
    tally = Touches.of(graph, dealt, parts)
    assert tally.touched.tolist() == recounted(graph, dealt, parts)
    for _ in range(4):
        tally.sweep(rng, Bounds(0, 99), Aim(1), heat=heat)
        assert tally.touched.tolist() == recounted(graph, tally.rows, parts)
    again = Touches.of(graph, tally.rows, parts)
    np.testing.assert_array_equal(tally.counts.state, again.counts.state)
    np.testing.assert_array_equal(tally.load, again.load)
    for first, last in zip(again.counts.starts, again.counts.starts[1:], strict=False):
        one, other = tally.counts.slots[first:last].tolist(), again.counts.slots[first:last].tolist()
        assert one == other if last - first == parts else sorted(one) == sorted(other)


@given(edges=EDGES, parts=st.integers(2, 5), seed=st.integers(0, 9))
def test_a_cold_pass_makes_the_total_no_larger(edges: list[tuple[int, int]], parts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tally = Touches.of(graph_of(edges), rng.integers(0, parts, 15).astype(np.int32), parts)
    before = tally.touched.sum()
    moved = tally.sweep(rng, Bounds(0, 15), Aim(0))
    assert tally.touched.sum() <= before - moved


@given(edges=EDGES, parts=st.integers(2, 5), seed=st.integers(0, 9), power=st.sampled_from([1, 6]))
def test_a_cold_pass_lowers_its_aim(edges: list[tuple[int, int]], parts: int, seed: int, power: int) -> None:
    """A row may be most of its part, so that slopes of the cost would be poor estimates."""
    rng = np.random.default_rng(seed)
    tally = Touches.of(graph_of(edges), rng.integers(0, parts, 15).astype(np.int32), parts)
    mean = max(1.0, tally.touched.mean())

    def cost() -> float:
        return float((tally.touched * (tally.touched / mean) ** power).sum() / (power + 1) + 0.5 * tally.touched.sum())

    before = cost()
    moved = tally.sweep(rng, Bounds(0, 15), Aim(power, 0.5))
    assert cost() < before if moved else cost() == before


@given(edges=EDGES, parts=st.integers(1, 6), seed=st.integers(0, 3))
def test_what_is_left_is_never_worse_than_parsa(edges: list[tuple[int, int]], parts: int, seed: int) -> None:
    graph, options = graph_of(edges), RefinedOptions(seed=seed)
    before, after = (
        Touches.of(graph, method.place(graph, parts, options).rows, parts).worth(options.aim)
        for method in (Parsa(), Refined())
    )
    assert after <= before


@pytest.mark.parametrize("slack", [0.0, 0.2])
def test_parts_are_no_larger_than_asked(slack: float) -> None:
    """A graph that favours one large part: half of the rows touch the same columns."""
    rng = np.random.default_rng(0)
    rows, to = np.repeat(np.arange(400), 8), rng.integers(0, 600, 3200)
    to[:1600] %= 12
    graph = Bipartite.from_edges(rows, to, (400, 600))
    found = traffic(graph, Refined().place(graph, 7, RefinedOptions(slack=slack, loose=0.5)))
    assert found.rows.max() <= (1 + slack) * 400 / 7 + 1 and found.rows.min() >= 1


@given(edges=EDGES, seed=st.integers(0, 9), weighted=st.booleans())
def test_no_part_comes_to_touch_more_than_the_limit(edges: list[tuple[int, int]], seed: int, weighted: bool) -> None:
    """A part also stays within its own bounds."""
    graph, rng = graph_of(edges), np.random.default_rng(seed)
    if weighted:
        graph = graph.weighted(columns=np.arange(1, 11))
    tally = Touches.of(graph, (np.arange(15) % 3).astype(np.int32), 3)
    limit = int(np.median(tally.touched))
    before = tally.touched.copy()
    for _ in range(3):
        tally.sweep(rng, Bounds(np.array([2, 3, 1]), np.array([5, 9, 6]), limit), Aim(1), heat=20.0)
        assert (tally.touched <= np.maximum(limit, before)).all()
        assert (tally.load >= [2, 3, 1]).all() and (tally.load <= [5, 9, 6]).all()


def test_a_slow_part_ends_with_few_columns() -> None:
    rng = np.random.default_rng(3)
    graph = Bipartite.from_edges(np.repeat(np.arange(600), 6), (rng.random(3600) ** 3 * 400).astype(int), (600, 400))
    pace = PartRates(np.array([0.4, 0.4, 2.2]), np.zeros(3))
    tally = Touches.of(graph, (np.arange(600) % 3).astype(np.int32), 3, pace=pace)
    for _ in range(8):
        tally.sweep(rng, Bounds(150, 250), Aim(1), heat=1.0)
    assert tally.touched[2] < 0.8 * tally.touched[:2].min()


def test_fit_moves_what_costs_least() -> None:
    """Rows 0 to 3 share their columns; row 4 shares none, and is moved."""
    graph = Bipartite.from_edges([0, 0, 1, 1, 2, 2, 3, 3, 4, 5], [0, 1, 0, 1, 0, 1, 0, 1, 2, 3])
    tally = Touches.of(graph, np.array([0, 0, 0, 0, 0, 1], np.int32), 2)
    fit(tally, np.random.default_rng(0), Bounds(1, 4), Aim(0))
    assert tally.rows.tolist() == [0, 0, 0, 0, 1, 1]


def test_the_largest_part_is_what_shrinks() -> None:
    """Without weights the total decreases most, with weights the largest |N(U_i)|."""
    rng = np.random.default_rng(1)
    graph = Bipartite.from_edges(np.repeat(np.arange(600), 6), (rng.random(3600) ** 3 * 400).astype(int), (600, 400))
    plain, weighted = (
        traffic(graph, Refined().place(graph, 6, RefinedOptions(power=power))).largest_memory for power in (0, 6)
    )
    parsa = traffic(graph, Parsa().place(graph, 6, Options())).largest_memory
    assert weighted < plain and weighted < parsa


def test_parts_touch_as_much_as_one_another() -> None:
    """Rows of unequal degrees in parts of equal size: the largest |N(U_i)| is hardly above the mean."""
    rng = np.random.default_rng(4)
    rows = np.repeat(np.arange(2000), 2 + (rng.pareto(1.5, 2000) * 3).astype(int).clip(max=60))
    graph = Bipartite.from_edges(rows, (rng.random(len(rows)) ** 2 * 1500).astype(int))
    for seed in range(3):
        touched = traffic(graph, Refined().place(graph, 8, Options(seed))).touched
        assert touched.max() < 1.01 * touched.mean()


def test_no_power_is_past_a_float() -> None:
    """Six thousand parts, and a row that touches the columns of all: its part has thousands of times the mean."""
    rows = np.arange(8000)
    graph = Bipartite.from_edges([*rows, *np.full(8000, 8000)], [*rows, *rows])
    tally = Touches.of(graph, np.arange(8001, dtype=np.int32) % 6000, 6000)
    largest = np.float64(graph.columns / tally.touched.mean())
    with np.errstate(over="raise"):
        assert np.isfinite(largest**tally.max_power * graph.columns)
        with pytest.raises(FloatingPointError):
            _ = largest ** EVENING[-1]
    assert Touches.of(graph, tally.rows % 16, 16).max_power > EVENING[-1]


def test_refined_is_better_than_parsa_on_every_figure() -> None:
    rng = np.random.default_rng(2)
    graph = Bipartite.from_edges(np.repeat(np.arange(2000), 10), rng.integers(0, 2000, 20000), (2000, 2000))
    before, after = (traffic(graph, method.place(graph, 8, Options())) for method in (Parsa(), Refined()))
    assert after.largest_memory < before.largest_memory
    assert after.largest_traffic < before.largest_traffic
    assert after.total_traffic < before.total_traffic


@pytest.mark.parametrize(
    "wrong",
    [{"passes": -1}, {"heat": -1.0}, {"power": float("nan")}, {"power": 0.5}, {"power": float("inf")}, {"loose": -0.1}],
)
def test_options_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"expected a (whole )?number from 0"):
        RefinedOptions(**wrong)  # type: ignore[arg-type]


def test_sizes() -> None:
    assert sizes(10, 3, 0.0) == Bounds(1, 4)
    assert sizes(100, 4, 0.0, 0.1) == Bounds(22, 28)
    unequal = sizes(100, 2, 0.1, 0.2, np.array([0.75, 0.25]), 3)
    assert [np.asarray(each).tolist() for each in unequal[:2]] == [[60, 20], [93, 33]]
    assert isinstance(Refined().place(graph_of([(0, 0)]), 15, Options()), Placement)
