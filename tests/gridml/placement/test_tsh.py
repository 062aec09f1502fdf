"""The two-step heuristic: one row per step and two, the memory limit, and the parts that serve columns."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.base import Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import traffic
from gridml.placement.serving import serve
from gridml.placement.tsh import Tsh, TshOptions, serve_greedily
from tests.gridml.placement.test_tsh_printed import random_graph


def uniform(rows: int, columns: int, degree: int, seed: int) -> Bipartite:
    rng = np.random.default_rng(seed)
    edges = rows * degree
    return Bipartite.from_edges(rng.integers(0, rows, edges), rng.integers(0, columns, edges), (rows, columns))


def total(graph: Bipartite, options: Options, parts: int = 8) -> int:
    return traffic(graph, Tsh().place(graph, parts, options)).total_traffic


def test_two_rows_a_step_are_better_than_one_on_sparse_graphs() -> None:
    one, two = (
        np.mean([total(uniform(2000, 2000, 8, seed), TshOptions(seed=seed, step=step)) for seed in range(4)])
        for step in (1, 2)
    )
    assert two < 0.995 * one


def test_two_rows_a_step_need_less_memory_than_one() -> None:
    """The last rows touch most columns; pairs of them were once dealt out unevenly."""
    for graphs in ([random_graph(seed) for seed in range(0, 30, 2)], [random_graph(seed) for seed in range(1, 30, 2)]):
        one, two = (
            np.mean([traffic(each, Tsh().place(each, 8, TshOptions(step=step))).largest_memory for each in graphs])
            for step in (1, 2)
        )
        assert two < 0.99 * one


def test_plain_options_take_two_rows_a_step() -> None:
    graph = uniform(300, 300, 5, 0)
    assert total(graph, Options(seed=3)) == total(graph, TshOptions(seed=3, step=2))


def test_a_step_takes_the_pair_that_costs_least_together() -> None:
    """Rows 0 and 1 are the cheapest and share nothing; 2 and 3 touch the same three columns."""
    graph = Bipartite.from_edges([0, 0, 1, 1, 2, 2, 2, 3, 3, 3], [0, 1, 2, 3, 4, 5, 6, 4, 5, 6], (4, 7))
    for seed in range(4):
        placed = Tsh().place(graph, 2, TshOptions(seed=seed)).rows
        assert placed[2] == placed[3] and placed[0] == placed[1] != placed[2]


def test_samples_cost_quality_and_place_every_row() -> None:
    graph = uniform(2000, 2000, 8, 1)
    whole, sampled = (total(graph, TshOptions(sample=sample)) for sample in (None, 100))
    chance = traffic(graph, Placement(8, *(np.arange(2000, dtype=np.int32) % 8,) * 2, "")).total_traffic
    assert whole < sampled < chance


@pytest.mark.parametrize("step", [1, 2])
def test_the_memory_limit_holds_where_slack_lets_it(step: int) -> None:
    """Parts that have reached the memory limit take no more rows; others take more instead."""
    graph = uniform(400, 1200, 6, 0)
    free = traffic(graph, Tsh().place(graph, 4, TshOptions(step=step, slack=0.3)))
    limit = free.largest_memory - 1
    placed = traffic(graph, Tsh().place(graph, 4, TshOptions(step=step, slack=0.3, memory=limit)))
    assert placed.largest_memory <= limit and placed.rows.max() > free.rows.max()


def test_a_memory_limit_that_cannot_be_kept_says_what_can() -> None:
    graph = uniform(400, 300, 6, 2)
    with pytest.raises(UsageError, match="more than 20 columns") as refused:
        Tsh().place(graph, 4, TshOptions(memory=20))
    least, reached = (
        int(found) for found in re.findall(r"None has fewer than (\d+); one of (\d+)", str(refused.value))[0]
    )
    assert least == max(graph.degrees.max(), -(-len(np.unique(graph.neighbours)) // 4))
    placed = Tsh().place(graph, 4, TshOptions(memory=reached))
    assert traffic(graph, placed).largest_memory == reached
    with pytest.raises(UsageError, match=f"fewer than {graph.degrees.max()};"):
        Tsh().place(graph, 400, TshOptions(memory=int(graph.degrees.max()) - 1))


def test_columns_are_served_about_as_evenly_in_one_pass_as_by_sweeps() -> None:
    graph = uniform(1000, 800, 6, 4)
    rows = (np.arange(1000) % 8).astype(np.int32)
    once, swept = (
        traffic(graph, Placement(8, rows, columns, ""))
        for columns in (serve_greedily(graph, rows, 8), serve(graph, rows, 8, 0))
    )
    assert once.total_traffic == swept.total_traffic
    assert once.largest_traffic <= swept.largest_traffic + 8


@pytest.mark.parametrize(
    ("wrong", "said"), [({"step": 3}, "takes 3 rows"), ({"candidates": 1}, "out of 1"), ({"sample": 0}, "has 0 rows")]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TshOptions(**wrong)
