"""Graphs placed again: old rows stay, and new ones go to the best part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.auto import find
from gridml.placement.base import Options, Parts, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import traffic
from gridml.placement.repartition import Before, Moved, Repartition, RepartitionOptions
from gridml.placement.serving import serve
from tests.support.graphs import grouped

GRAPH = grouped(4000, 2000, 12, groups=8)
WAS = find("multilevel").place(GRAPH, 8, Options())


def first_rows(graph: Bipartite, count: int) -> Bipartite:
    return Bipartite(graph.offsets[: count + 1], graph.neighbours[: graph.offsets[count]], graph.columns)


@given(
    edges=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 14)), max_size=120),
    sizes=st.tuples(st.integers(1, 30), st.integers(0, 15)),
    parts=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    slack=st.sampled_from([0.0, 0.3]),
    cost=st.sampled_from([None, 0.0, 2.0]),
    seed=st.integers(0, 3),
    weighted=st.booleans(),
    uneven=st.booleans(),
)
def test_every_row_and_column_has_a_part(
    edges: list[tuple[int, int]],
    sizes: tuple[int, int],
    parts: tuple[int, int],
    slack: float,
    cost: float | None,
    seed: int,
    weighted: bool,
    uneven: bool,
) -> None:
    """For any grown graph, number of parts and shares: the same seed gives the same parts, and none is too large."""
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (30, 15))
    rng, (k, wanted) = np.random.default_rng(seed), parts
    if weighted:
        graph = graph.weighted(rng.integers(0, 9, 30), rng.integers(0, 5, 15))
    shares = rng.integers(1, 5, wanted) if uneven else np.ones(wanted, np.int64)
    options = RepartitionOptions(seed, slack, shares=tuple(shares.tolist()), cost=cost)
    before = Before.of(
        Placement(k, *(rng.integers(0, k, count).astype(np.int32) for count in sizes), ""), graph
    )  # randomly uneven
    placed = Repartition(before).place(graph, wanted, options)
    assert placed.rows.dtype == placed.columns.dtype == np.int32
    assert traffic(graph, placed).rows.sum() == 30
    room = (1 + slack) * graph.work * shares / shares.sum() + graph.heaviest
    assert (np.bincount(placed.rows, graph.works, wanted) <= room + 1e-9).all()
    again = Repartition(before).place(graph, wanted, options)
    assert np.array_equal(placed.rows, again.rows) and np.array_equal(placed.columns, again.columns)
    if k == wanted and cost is None:
        there = before.columns >= 0
        assert (placed.columns[there] == before.columns[there]).all()
        was = before.rows >= 0
        mean_row = max(1, graph.work // 30)
        crowded = np.bincount(before.rows[was], graph.works[was], k) > room - graph.heaviest + mean_row - 1e-9
        stays = was & ~crowded[before.rows]
        assert (placed.rows[stays] == before.rows[stays]).all()


def test_weights_of_columns_decide_where_a_new_row_goes() -> None:
    graph = Bipartite.from_edges([0, 0, 0, 1, 1, 1, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5, 0, 1, 3, 6], (3, 7))
    before = Before(2, np.array([0, 1, -1], np.int32), np.zeros(7, np.int32))
    for weights, goes in (([1] * 7, 0), ([1, 1, 1, 5, 1, 1, 1], 1)):
        placed = Repartition(before).place(graph.weighted(columns=weights), 2, Options(objective="total"))
        assert placed.rows.tolist() == [0, 1, goes]


def test_columns_are_served_by_what_they_weigh() -> None:
    sizes = np.random.default_rng(3).integers(1, 50, GRAPH.columns)
    graph = GRAPH.weighted(columns=sizes)
    placed = Repartition(Before.of(WAS, GRAPH)).place(graph, 4, Options())
    served = replace(placed, columns=serve(graph, placed.rows, 4, 0))
    assert traffic(graph, placed).largest_traffic <= 1.02 * traffic(graph, served).largest_traffic


def test_other_shares_move_what_they_must_and_little_more() -> None:
    shares = (2, 1, 1, 1, 1, 1, 1, 1)
    before = Before.of(WAS, GRAPH)
    placed = Repartition(before).place(GRAPH, 8, Options(shares=shares))
    load = np.bincount(placed.rows)
    assert 880 <= load[0] <= 890 and load[1:].max() <= 445
    moved = Moved.between(before, placed).rows_moved
    assert 4000 * (2 / 9 - 1 / 8) - 8 <= moved <= 4000 * (2 / 9 - 1 / 8) + 120
    afresh, chance = (find(name).place(GRAPH, 8, Options(shares=shares)) for name in ("multilevel", "random"))
    found, best, worst = (traffic(GRAPH, each).total_traffic for each in (placed, afresh, chance))
    assert found < 1.25 * best < 0.7 * worst


def test_a_memory_limit_is_kept_or_refused() -> None:
    before = Before.of(WAS, GRAPH)
    free = traffic(GRAPH, Repartition(before).place(GRAPH, 7, Options()))
    limit = int(0.985 * free.largest_memory)
    assert traffic(GRAPH, Repartition(before).place(GRAPH, 7, Options(memory=limit))).largest_memory <= limit
    with pytest.raises(UsageError, match=r"no placement on 7 parts was found in which none touches more than 400"):
        Repartition(before).place(GRAPH, 7, Options(memory=400))


@pytest.mark.parametrize("parts", [6, 9])
def test_rows_of_unequal_work_are_placed_again(parts: int) -> None:
    works = np.random.default_rng(5).integers(1, 100, GRAPH.rows)
    graph = GRAPH.weighted(rows=works)
    was = find("multilevel").place(graph, 8, Options())
    before = Before.of(was, graph)
    placed = Repartition(before).place(graph, parts, Options())
    load = np.bincount(placed.rows, works, parts)
    assert load.max() <= works.sum() / parts + 100
    assert Moved.between(before, placed).rows_moved / 4000 < abs(1 - 8 / parts) + 0.12
    chance = traffic(graph, find("random").place(graph, parts, Options()))
    assert traffic(graph, placed).total_traffic < 0.7 * chance.total_traffic


def test_new_rows_go_where_they_belong_and_old_ones_stay() -> None:
    order = np.random.default_rng(0).permutation(GRAPH.rows)
    graph = Bipartite.from_edges(
        np.repeat(np.argsort(order), GRAPH.degrees), GRAPH.neighbours, (GRAPH.rows, GRAPH.columns)
    )
    was = find("multilevel").place(first_rows(graph, 3000), 8, Options())
    before = Before.of(was, graph)
    placed = Repartition(before).place(graph, 8, Options())
    assert np.array_equal(placed.rows[:3000], was.rows) and np.array_equal(placed.columns, was.columns)
    assert Moved.between(before, placed) == Moved(3000, 0, 0, graph.columns, 0)
    assert "0 of 3,000 rows and 0 of 2,000 columns, which moved, and 1,000 and 0 new ones" in placed.why
    by_chance = placed.rows.copy()
    by_chance[3000:] = np.random.default_rng(1).permutation(1000) % 8
    chance = traffic(graph, replace(placed, rows=by_chance, columns=serve(graph, by_chance, 8, 0)))
    afresh, found = (traffic(graph, each) for each in (find("multilevel").place(graph, 8, Options(1)), placed))
    assert found.balance <= 1.003
    assert found.largest_memory < 1.1 * afresh.largest_memory < 0.75 * chance.largest_memory
    assert found.total_traffic < 1.1 * afresh.total_traffic < 0.6 * chance.total_traffic


@pytest.mark.parametrize(("parts", "must"), [(7, 1 / 8), (9, 1 / 9), (4, 1 / 2), (16, 1 / 2)])
def test_few_rows_move_when_the_number_of_parts_changes(parts: int, must: float) -> None:
    before = Before.of(WAS, GRAPH)
    placed = Repartition(before).place(GRAPH, parts, Options())
    found = traffic(GRAPH, placed)
    moved = Moved.between(before, placed)
    assert found.balance <= 1 + 2 * parts / GRAPH.rows and found.rows.min() > 0
    assert moved.rows_before == 4000 and moved.rows_lost == int((WAS.rows >= parts).sum())
    assert must - 0.01 < moved.rows_moved / 4000 < must + 0.06
    chance = traffic(GRAPH, find("random").place(GRAPH, parts, Options()))
    assert found.largest_memory < 0.85 * chance.largest_memory
    assert found.total_traffic < 0.65 * chance.total_traffic


def test_parts_that_are_lost_need_not_be_the_last() -> None:
    before = Before(4, np.array([0, 1, 2, 3, -1], np.int32), np.array([3, -1], np.int32))
    found = before.with_last([2, 0])
    assert (found.parts, found.rows.tolist(), found.columns.tolist()) == (4, [3, 0, 2, 1, -1], [1, -1])
    for lost, said in (([4], "4"), ([1, 1], "1, 1"), ([-1], "-1")):
        with pytest.raises(UsageError, match=rf"the lost parts are {said}; expected different numbers of 0 to 3"):
            before.with_last(lost)
    left = Repartition(Before.of(WAS, GRAPH).with_last([2])).place(GRAPH, 7, Options())
    stays = WAS.rows != 2
    assert (left.rows[stays] == WAS.rows[stays] - (WAS.rows[stays] > 2)).mean() > 0.95


def test_a_lower_cost_moves_more_rows_and_gains_more() -> None:
    dealt = WAS.rows.copy()
    mixed = np.random.default_rng(0).permutation(4000)[:800]
    dealt[mixed] = np.roll(dealt[mixed], 1)  # parts keep their sizes, and a fifth of the rows are in a wrong part
    before = Before(8, dealt, WAS.columns)
    stays, cheap = (Repartition(before).place(GRAPH, 8, RepartitionOptions(cost=cost)) for cost in (None, 0.1))
    assert np.array_equal(stays.rows, dealt)
    assert 300 < Moved.between(before, cheap).rows_moved < 1000
    assert traffic(GRAPH, cheap).total_traffic < 0.7 * traffic(GRAPH, stays).total_traffic


def test_a_part_that_is_too_large_gives_rows_away() -> None:
    uneven = np.minimum(WAS.rows, 6)  # the seventh has twice as many as the others
    placed = Repartition(Before(8, uneven, WAS.columns)).place(GRAPH, 8, Options())
    assert traffic(GRAPH, placed).balance <= 1.002
    assert (placed.rows[uneven < 6] == uneven[uneven < 6]).all()


def test_columns_of_parts_that_are_gone_are_served_where_they_are_used() -> None:
    placed = Repartition(Before.of(WAS, GRAPH)).place(GRAPH, 4, Options())
    served = replace(placed, columns=serve(GRAPH, placed.rows, 4, 0))
    assert traffic(GRAPH, placed).largest_traffic <= 1.02 * traffic(GRAPH, served).largest_traffic


def parts_of(count: int) -> Parts:
    return np.zeros(count, np.int32)


def test_what_was_placed_before_must_be_of_this_graph() -> None:
    graph = Bipartite.from_edges([0, 1, 2], [0, 1, 0])
    for rows, columns, says in ((4, 2, "4 rows were placed before, and the graph has 3"), (3, 3, "3 columns were")):
        with pytest.raises(UsageError, match=says):
            Before.of(Placement(1, parts_of(rows), parts_of(columns), ""), graph)
    with pytest.raises(UsageError, match=r"2 rows and 2 columns were placed before, and the graph has 3 and 2"):
        Repartition(Before(1, parts_of(2), parts_of(2))).place(graph, 1, Options())
    with pytest.raises(UsageError, match=r"3 rows cannot be placed on 4 parts"):
        Repartition(Before(1, parts_of(3), parts_of(2))).place(graph, 4, Options())
    with pytest.raises(UsageError, match=r"a move costs -1 mean rows' columns; expected a number from 0"):
        RepartitionOptions(cost=-1)
    with pytest.raises(ValueError, match="two graphs"):
        Moved.between(Before(1, parts_of(3), parts_of(2)), Placement(1, parts_of(4), parts_of(2), ""))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(objective="duan"), "objective duan"),
    ],
)
def test_what_is_not_honoured_is_refused(options: Options, said: str) -> None:
    graph = Bipartite.from_edges([0, 1, 2], [0, 1, 0])
    again = Repartition(Before(3, parts_of(3), parts_of(2)))
    with pytest.raises(UsageError, match=f"again takes no account of {said}; expected refined"):
        again.place(graph, 3, options)
