"""Parsa's Algorithm 1: the best set against brute force, and Proposition 1."""

from __future__ import annotations

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa_sets import ParsaSets, ParsaSetsOptions, best_set, take
from gridml.placement.quality import traffic

ROWS = st.lists(st.frozensets(st.integers(0, 7), max_size=6), min_size=2, max_size=7)


def graph_of(rows: list[frozenset[int]]) -> Bipartite:
    edges = [(u, v) for u, columns in enumerate(rows) for v in columns]
    return Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (len(rows), 8))


def f(rows: list[frozenset[int]], members: tuple[int, ...]) -> int:
    return len(frozenset().union(*(rows[row] for row in members)))


@given(ROWS, st.frozensets(st.integers(0, 7)), st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.25]))
def test_the_best_set_is_the_largest_that_brute_force_finds(
    rows: list[frozenset[int]], known: frozenset[int], alpha: float
) -> None:
    sets = [*chain(*(combinations(range(len(rows)), size) for size in range(len(rows) + 1)))]
    value = {each: f([row - known for row in rows], each) - alpha * len(each) for each in sets}
    best = {each for each in sets if value[each] == min(value.values())}
    flags = np.isin(np.arange(8), list(known))
    found = best_set(graph_of(rows), np.arange(len(rows), dtype=np.int32), flags, alpha)
    assert tuple(found.tolist()) in best and set(found.tolist()) == set().union(*best)


@given(ROWS, st.integers(2, 7), st.integers(0, 99))
def test_proposition_1_against_brute_force(rows: list[frozenset[int]], parts: int, seed: int) -> None:
    """B is the least max f of all partitionings. Where the algorithm succeeds, the bound holds. As its proof says,
    f(U_i) ≤ α·|U_i| and |U_i| ≤ 3·n/k before the rows that are left are dealt out."""
    parts, count, graph = min(parts, len(rows)), len(rows), graph_of(rows)
    least = min(
        max(f(rows, tuple(u for u in range(count) if at[u] == part)) for part in range(parts))
        for at in product(range(parts), repeat=count)
    )
    scale = np.sqrt(count / np.log(count))
    options = ParsaSetsOptions(seed, alpha=float(least * parts / np.sqrt(count * np.log(count))))
    taken, alpha, _ = take(graph, parts, options)
    for part in range(parts):
        members = tuple(np.flatnonzero(taken == part).tolist())
        assert f(rows, members) <= alpha * len(members) + 0.01 and len(members) <= 3 * count / parts
    if (taken < 0).sum() <= parts * scale:
        placed = ParsaSets().place(graph, parts, options)
        assert traffic(graph, placed).largest_memory <= 4 * least * scale


def planted(parts: int, each: int, columns: int, seed: int) -> Bipartite:
    """Return a graph whose rows fall into groups that touch `columns` columns each: B is at most `columns`."""
    rng = np.random.default_rng(seed)
    group = np.repeat(rng.permutation(np.arange(parts * each) % parts), 3)
    row = np.repeat(np.arange(parts * each), 3)
    return Bipartite.from_edges(
        row, group * columns + rng.integers(0, columns, len(row)), (parts * each, parts * columns)
    )


@pytest.mark.parametrize("seed", range(5))
def test_proposition_1_where_its_conditions_hold(seed: int) -> None:
    parts, graph = 34, planted(34, 12, 8, seed)
    scale = float(np.sqrt(graph.rows / np.log(graph.rows)))
    assert parts > scale, "k > θ"
    options = ParsaSetsOptions(seed, alpha=8 * parts / float(np.sqrt(graph.rows * np.log(graph.rows))))
    found = traffic(graph, ParsaSets().place(graph, parts, options))
    assert found.largest_memory <= 4 * 8 * scale
    assert found.rows.max() <= 3 * graph.rows / parts + np.ceil(scale)


def test_a_small_alpha_finds_groups_and_the_propositions_takes_all_that_is_drawn() -> None:
    graph = planted(4, 60, 20, 0)
    tight, loose = (traffic(graph, ParsaSets().place(graph, 4, ParsaSetsOptions(alpha=alpha))) for alpha in (1.0, None))
    assert tight.total_traffic < 0.8 * loose.total_traffic


def test_too_many_rows_that_are_left_are_a_failure() -> None:
    with pytest.raises(UsageError, match=r"failed: 240 of 240 rows are left; expected at most k·θ = 26\.5"):
        ParsaSets().place(planted(4, 60, 20, 0), 4, ParsaSetsOptions(alpha=0.01))
    with pytest.raises(UsageError, match="alpha of Algorithm 1 is -1"):
        ParsaSetsOptions(alpha=-1)
