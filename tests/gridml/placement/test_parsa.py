"""Parsa's own promises, beside those of every method."""

from __future__ import annotations

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.neighbour_sets import no_sets, sets_of
from gridml.placement.parsa import Parsa, ParsaOptions
from gridml.placement.parsa_block import SPREAD, deal, numbered
from gridml.placement.traffic import traffic
from gridml.testing.graphs import grouped


def slowly(graph: Bipartite, parts: int) -> tuple[list[int], list[int]]:
    """Algorithm 3 with sets, a part after the other: the fewest new columns of each row as it is taken."""
    touched: list[set[int]] = [set() for _ in range(parts)]
    rows = [set(graph.neighbours[a:b].tolist()) for a, b in zip(graph.offsets, graph.offsets[1:], strict=False)]
    left, taken = set(range(graph.rows)), []
    for turn in range(graph.rows):
        part = turn % parts
        fewest = min(len(rows[row] - touched[part]) for row in left)
        row = min(row for row in left if len(rows[row] - touched[part]) == fewest)
        taken.append(fewest)
        touched[part] |= rows[row]
        left.remove(row)
    return taken, [len(each) for each in touched]


@pytest.mark.parametrize("seed", range(5))
def test_a_block_takes_the_cheapest_row_at_each_turn(seed: int) -> None:
    graph, parts = grouped(60, 40, 5, seed=seed), 3
    rows = np.full(60, -1, np.int32)
    sets, order = no_sets(40, parts), (np.arange(60) % parts).astype(np.int32)
    cost = np.empty((parts, 60), np.int16)
    every = np.arange(60, dtype=np.int32)
    block = numbered(graph.offsets, graph.neighbours, every, np.full(40, -1, np.int32), sets.shape[1])
    deal(every, block, order, sets, SPREAD, cost, rows)
    assert np.bincount(rows).tolist() == [20, 20, 20] and not sets.any()
    # Which of several equally cheap rows is taken differs, so what is compared is how good the parts become.
    (_, plainly), found = slowly(graph, parts), np.unpackbits(sets_of(graph, rows, parts).view(np.uint8)).sum()
    assert found <= 1.1 * sum(plainly)


def test_threads_change_nothing_and_delay_little() -> None:
    graph = grouped(6000, 3000, 12, groups=8)
    alone = Parsa().place(graph, 8, ParsaOptions(blocks=12, delay=3))
    threads = Parsa().place(graph, 8, ParsaOptions(blocks=12, delay=3, threads=4))
    assert np.array_equal(alone.rows, threads.rows) and np.array_equal(alone.columns, threads.columns)
    prompt = traffic(graph, Parsa().place(graph, 8, ParsaOptions(blocks=12)))
    assert traffic(graph, alone).total_traffic < 1.1 * prompt.total_traffic


def test_rows_of_more_columns_than_a_small_number_holds() -> None:
    long = Bipartite.from_edges([0] * 40_000 + [1] * 40_000, [*range(40_000), *range(40_000)], (4, 40_000))
    placed = Parsa().place(long, 2, ParsaOptions(blocks=1))
    assert traffic(long, placed).rows.tolist() == [2, 2]


@pytest.mark.parametrize("option", ["blocks", "warm_up", "delay", "threads"])
def test_numbers_that_make_no_sense(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} of parsa is -1; expected at least"):
        ParsaOptions(**{option: -1})
