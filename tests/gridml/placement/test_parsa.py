"""Parsa's own properties, in addition to those of every method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.base import Options
from gridml.placement.bipartite import MAX_COUNT, Bipartite
from gridml.placement.parsa import Parsa, ParsaOptions, deal_out
from gridml.placement.quality import traffic
from tests.support.graphs import grouped

EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 14)), max_size=120)


def graph_of(edges: list[tuple[int, int]]) -> Bipartite:
    return Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (20, 15))


def plainly(graph: Bipartite, parts: int, *, least_touched: bool = False) -> list[int]:
    """Algorithm 3 with sets: each part in turn, or the part that touches the fewest columns, takes the remaining row
    that adds the fewest new columns; ties go to the row that touches most columns, then to the first."""
    touched: list[set[int]] = [set() for _ in range(parts)]
    rows = [set(graph.neighbours[a:b].tolist()) for a, b in zip(graph.offsets, graph.offsets[1:], strict=False)]
    left, part_of = set(range(graph.rows)), [-1] * graph.rows
    for turn in range(graph.rows):
        part = min(range(parts), key=lambda part: len(touched[part])) if least_touched else turn % parts
        row = min(left, key=lambda row: (len(rows[row] - touched[part]), -len(rows[row]), row))
        part_of[row] = part
        touched[part] |= rows[row]
        left.remove(row)
    return part_of


def touching(graph: Bipartite, rows: list[int]) -> list[set[int]]:
    """Return the parts that touch each column."""
    found: list[set[int]] = [set() for _ in range(graph.columns)]
    for row, part in enumerate(rows):
        for column in graph.neighbours[graph.offsets[row] : graph.offsets[row + 1]]:
            found[column].add(part)
    return found


@given(EDGES, st.integers(1, 20))
def test_one_block_without_warm_up_is_algorithm_3(edges: list[tuple[int, int]], parts: int) -> None:
    graph = graph_of(edges)
    assert deal_out(graph, parts, ParsaOptions(blocks=1, warm_up=0))[0].tolist() == plainly(graph, parts)


@pytest.mark.parametrize("parts", [3, 70])
def test_algorithm_3_where_groups_of_rows_are_searched(parts: int) -> None:
    graph = grouped(700, 300, 8)
    assert deal_out(graph, parts, ParsaOptions(blocks=1, warm_up=0))[0].tolist() == plainly(graph, parts)


@given(EDGES, st.integers(1, 20))
def test_the_part_that_touches_least_can_be_next_as_printed(edges: list[tuple[int, int]], parts: int) -> None:
    graph, options = graph_of(edges), ParsaOptions(blocks=1, warm_up=0, least_touched=True)
    assert deal_out(graph, parts, options)[0].tolist() == plainly(graph, parts, least_touched=True)


def test_the_part_that_touches_least_evens_out_columns_and_not_rows() -> None:
    graph = grouped(2000, 1000, 8)
    printed, ours = (traffic(graph, Parsa().place(graph, 8, ParsaOptions(least_touched=way))) for way in (True, False))
    assert np.ptp(printed.touched) < np.ptp(ours.touched) and printed.balance > 1.05 > ours.balance
    with pytest.raises(UsageError, match="got shares or row weights with least_touched"):
        Parsa().place(graph, 2, ParsaOptions(least_touched=True, shares=(1.0, 2.0)))


@given(EDGES, st.integers(1, 5), st.integers(1, 7), st.integers(0, 5), st.integers(0, 3), st.integers(1, 3))
@example([(1, 0), (2, 0)], 5, 5, 1, 2, 1)
def test_sets_are_what_the_parts_touch(
    edges: list[tuple[int, int]], parts: int, blocks: int, warm_up: int, delay: int, threads: int
) -> None:
    """The properties hold for any warm-up and any delay between blocks."""
    graph, options = graph_of(edges), ParsaOptions(blocks=blocks, warm_up=warm_up, delay=delay)
    rows, sets, _ = deal_out(graph, parts, replace(options, threads=threads))
    bits = [{part for part in range(parts) if int(words[0]) >> part & 1} for words in sets]
    assert bits == touching(graph, rows.tolist())
    assert np.array_equal(rows, deal_out(graph, parts, options)[0]), "threads change nothing"


def test_threads_change_nothing_and_delay_little() -> None:
    graph = grouped(6000, 3000, 12, groups=8)
    alone = Parsa().place(graph, 8, ParsaOptions(blocks=12, delay=3))
    threads = Parsa().place(graph, 8, ParsaOptions(blocks=12, delay=3, threads=4))
    assert np.array_equal(alone.rows, threads.rows) and np.array_equal(alone.columns, threads.columns)
    prompt = traffic(graph, Parsa().place(graph, 8, ParsaOptions(blocks=12)))
    assert traffic(graph, alone).total_traffic < 1.1 * prompt.total_traffic


@pytest.mark.parametrize("delay", [0, 3])
def test_blocks_dealt_out_at_once_make_up_for_what_parts_are_ahead(delay: int) -> None:
    """A part is ahead of its share by less than a row for each block of a group."""
    graph = grouped(3000, 1500, 8)
    works = np.random.default_rng(0).integers(1, 100, 3000)
    options = ParsaOptions(shares=(3.0, 1.0, 1.0), blocks=12, delay=delay)
    placed = Parsa().place(graph.weighted(rows=works), 3, options)
    load = np.bincount(placed.rows, works)
    assert (np.abs(load - works.sum() * np.array([0.6, 0.2, 0.2])) <= (1 + delay) * 100).all()


def test_slack_is_said_to_be_of_no_use() -> None:
    assert "the slack is not used" in Parsa().place(grouped(60, 30, 4), 3, Options(slack=0.1)).why


def test_rows_of_more_columns_than_a_small_number_holds() -> None:
    long = Bipartite.from_edges([0] * 40_000 + [1] * 40_000, [*range(40_000), *range(40_000)], (4, 40_000))
    placed = Parsa().place(long, 2, ParsaOptions(blocks=1))
    assert traffic(long, placed).rows.tolist() == [2, 2]


def test_a_cost_never_falls_below_that_of_a_row_that_is_gone() -> None:
    """Rows with 16,000 shared columns: costs are kept in 16 bits, and decrease by as much."""
    columns = np.tile(np.arange(16_000), 6)
    graph = Bipartite.from_edges(np.repeat(np.arange(6), 16_000), columns, (8, 16_000))
    rows = deal_out(graph, 2, ParsaOptions(blocks=1, warm_up=0))[0]
    assert rows.tolist() == plainly(graph, 2)


def test_a_block_of_too_many_edges() -> None:
    rows = 4
    graph = Bipartite(np.arange(rows + 1) * (MAX_COUNT // 2), np.empty(0, np.int32), 10)
    with pytest.raises(UsageError, match=r"a block of 4 rows has 4,294,967,292 edges; expected at most 2,147,483,647"):
        deal_out(graph, 2, ParsaOptions(blocks=1))


@pytest.mark.parametrize("option", ["blocks", "run", "warm_up", "delay", "threads"])
def test_numbers_that_make_no_sense(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} of parsa is -1; expected at least"):
        ParsaOptions(**{option: -1})
