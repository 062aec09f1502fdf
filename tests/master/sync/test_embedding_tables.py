"""Embedding tables in a module: steps are added if pushes hardly pull their rows, within the bounds of the mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import gridml
from gridml.model.graph import Graph
from gridml.protocol.push import ReplicaPart
from master.store.replica import Replica
from master.store.versions import Versions, initial
from master.sync.merger import Merger
from tests.master.sync import least_squares
from tests.master.sync.least_squares import WIDTH, Master, Place, Problem
from tests.support.effort import examples

KEY, NAME = ("Network", 0), "Network/0/model/weight"


def graph(rows: int, rule: gridml.Aggregate | None = None) -> Graph:
    def table() -> nn.Module:
        made = nn.Embedding(rows, WIDTH).double()
        nn.init.zeros_(made.weight)
        return made

    members: dict[str, Any] = {"model": gridml.module(table), "__module__": __name__}
    if rule is not None:
        members["aggregate"] = rule
    network = type("Network", (gridml.Vertex,), members)
    point = type("Point", (gridml.Vertex,), {"network": gridml.edge(network), "__module__": __name__})
    g = Graph()
    g.add(point, 1, network=g.add(network))
    return g


TABLE = Place(lambda state: state.modules[KEY].tensors[NAME], lambda rows, ids: ReplicaPart({KEY: {NAME: rows}}))


def trained(problem: Problem, folder: Path, workers: int, pushes: int, *, driver: str | None = "Point") -> float:
    """Return the error of the rows after some pushes."""
    master = Master(graph(len(problem.truth)), folder, workers, driver)
    return least_squares.trained(problem, master, TABLE, workers, pushes)


def test_many_workers_are_worth_one_where_rows_are_hardly_pulled(tmp_path: Path) -> None:
    problem = Problem.drawn(1, rows=200, each=2, rate=0.005, popular=-0.5)
    one = trained(problem, tmp_path / "one", 1, 400)
    many = trained(problem, tmp_path / "many", 8, 400)
    averaged = trained(problem, tmp_path / "averaged", 8, 400, driver=None)
    assert averaged > 1.5 * one
    assert many - one < 0.5 * (averaged - one)


@settings(max_examples=examples(24), deadline=None)
@given(
    seed=st.integers(0, 1_000),
    rows=st.sampled_from([1, 2, 8, 50, 300]),
    each=st.integers(1, 8),
    rate=st.sampled_from([0.003, 0.02, 0.1]),
    popular=st.sampled_from([0.0, -0.5, -1.0]),
    workers=st.sampled_from([2, 5, 16]),
)
@example(seed=10, rows=8, each=5, rate=0.1, popular=-0.5, workers=16)
@example(seed=0, rows=8, each=3, rate=0.1, popular=0.0, workers=16)
def test_however_strongly_rows_are_pulled_workers_do_not_overshoot(
    seed: int, rows: int, each: int, rate: float, popular: float, workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Separate training by several workers stays as stable as with the mean: an error that overshoots would be as large
    as the initial one, or larger. For a medium pull it may be slower, as in the examples."""
    each = min(each, rows)
    problem = Problem.drawn(seed, rows, each, rate / each, popular=popular)
    folder = tmp_path_factory.mktemp("run")
    averaged = trained(problem, folder / "averaged", workers, 150, driver=None)
    summed = trained(problem, folder / "summed", workers, 150)
    assert summed <= 1.1 * averaged + 0.1 * problem.distance(np.zeros_like(problem.truth))


@pytest.mark.parametrize("rule", [gridml.mean(), gridml.add(), gridml.by_name({"*weight": gridml.mean()})], ids=repr)
def test_a_rule_that_does_not_ask_is_left_alone(rule: Any, tmp_path: Path) -> None:
    of = graph(5, rule)
    replica = Replica(of, Versions(tmp_path / "versions", durable=False))
    replica.start(initial(of, 0))
    assert Merger(of, replica, 2, "Point")._tables_of(KEY) == ()
