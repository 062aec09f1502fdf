"""The last stage of refinement: objectives that include work, and the memory limit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.auto import find
from gridml.placement.base import (
    DUAN,
    MEMORY,
    MESH,
    SECONDS,
    STAR,
    TOPOLOGIES,
    TOTAL,
    Options,
    Rates,
    advice,
    least_memory,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import Traffic, traffic
from tests.support.graphs import grouped, uneven

BOTH = pytest.mark.parametrize("name", ["refined", "multilevel"])
RATES = Rates((1e4, 1e4, 1e4, 2e4, 4e4, 8e4), (2e4,))
GRAPHS = {"grouped": grouped(2000, 1500, 8), "uneven": uneven(2000, 1500)}


def placed(name: str, graph: Bipartite, options: Options) -> Traffic:
    return traffic(graph, find(name).place(graph, 6, options), options.topology, options.fractions)


def mean(name: str, graph: Bipartite, objective: str, topology: str, slack: float) -> tuple[float, float]:
    """Duan's product and the seconds of a round decrease, for three seeds."""
    found = [placed(name, graph, Options(seed, slack, objective, None, None, topology, RATES)) for seed in range(3)]
    return float(np.mean([each.duan for each in found])), float(np.mean([each.seconds(RATES).max() for each in found]))


@BOTH
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_seconds_are_fewer_than_with_the_objective_memory(name: str, graph: Bipartite, topology: str) -> None:
    usual, aimed = (mean(name, graph, objective, topology, 0.0)[1] for objective in (MEMORY, SECONDS))
    assert aimed < 0.97 * usual


@BOTH
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_the_product_of_work_and_traffic_is_less_than_with_the_objective_memory(name: str, graph: Bipartite) -> None:
    usual, aimed = (mean(name, graph, objective, MESH, 0.1)[0] for objective in (MEMORY, DUAN))
    assert aimed < usual


@BOTH
def test_a_limit_that_holds_anyway_changes_nothing(name: str) -> None:
    graph = GRAPHS["grouped"]
    free = find(name).place(graph, 6, Options())
    largest = traffic(graph, free).largest_memory
    assert np.array_equal(find(name).place(graph, 6, Options(memory=largest)).rows, free.rows)


@BOTH
@pytest.mark.parametrize("weighted", [False, True])
def test_the_limit_is_kept_and_one_that_cannot_be_says_what_can(name: str, weighted: bool) -> None:
    graph = GRAPHS["grouped"]
    if weighted:
        sizes = np.random.default_rng(0).integers(1, 9, graph.columns)
        graph = graph.weighted(rows=graph.degrees, columns=sizes)
    options = Options(slack=0.2, objective=TOTAL)
    free = placed(name, graph, options).largest_memory
    with pytest.raises(UsageError, match="no placement on 6 parts") as refused:
        placed(name, graph, Options(slack=0.2, objective=TOTAL, memory=graph.columns // 40))
    said = re.search(r"None can have less than ([\d,]+); ([\d,]+) was found to do", str(refused.value))
    assert said is not None
    least, found = (int(number.replace(",", "")) for number in said.groups())
    assert least == least_memory(graph, 6) <= found < free
    kept = placed(name, graph, Options(slack=0.2, objective=TOTAL, memory=found))
    assert kept.largest_memory <= found
    assert (kept.work <= 1.2 * graph.work / 6 + graph.heaviest).all()


def test_the_least_memory_is_the_largest_row_or_an_even_share() -> None:
    graph = Bipartite.from_edges([0, 0, 0, 1, 2], [0, 1, 2, 3, 4], (3, 9))
    assert [least_memory(graph, parts) for parts in (1, 2, 3)] == [5, 3, 3]
    heavy = graph.weighted(columns=[1, 1, 1, 7, 1, 1, 1, 1, 99])
    assert [least_memory(heavy, parts) for parts in (1, 2, 3)] == [11, 7, 7]
    assert least_memory(Bipartite.from_edges([], [], (2, 2)), 2) == 0


def test_more_parts_are_asked_for_only_where_they_help() -> None:
    graph = Bipartite.from_edges([0, 0, 0, 1, 2], [0, 1, 2, 3, 4], (3, 9))
    assert advice(graph, 2, 0.1) == "Ask for that: one row alone touches 3 columns, however many parts there are."
    assert advice(graph, 3, 0.1) == "Ask for that, for more parts, or for more slack than 0.1."


def test_in_a_star_traffic_is_memory() -> None:
    found = placed("refined", GRAPHS["uneven"], Options(topology=STAR))
    assert found.travelling.tolist() == found.touched.tolist()
    assert found.total_traffic == found.touched.sum()
