"""Tables of embeddings in a module: added up where pushes hardly pull their rows, and never past the mean's bounds."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import gridml
from gridml.aggregates import Merge, VertexState
from gridml.model.graph import Graph
from gridml.protocol.push import ReplicaPart
from master.store.replica import Replica
from master.store.versions import ReplicaState, Versions, initial
from master.sync.merger import Merger

Array = NDArray[np.float64]
VERTICES, WIDTH = 2_000, 4
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


class Problem:
    """Least squares: a point asks of the sum of its rows that it has a product with the point's own direction."""

    def __init__(self, seed: int, rows: int, each: int, rate: float, *, popular: float = 0.0) -> None:
        chance = np.random.default_rng(seed)
        liking = popular * np.log(np.arange(1, rows + 1))  # the first rows are touched most
        self.targets = np.argsort(liking + chance.gumbel(size=(VERTICES, rows)), axis=1)[:, :each]
        self.directions = chance.normal(size=(VERTICES, WIDTH))
        self.truth = chance.normal(size=(rows, WIDTH))
        self.rate = rate

    def train(self, rows: Array, points: NDArray[np.int64]) -> None:
        for i in points:
            at, direction = self.targets[i], self.directions[i]
            rows[at] += self.rate * (((self.truth[at] - rows[at]).sum(0) * direction).sum()) * direction

    def distance(self, rows: Array) -> float:
        wrong = ((self.truth - rows)[self.targets].sum(1) * self.directions).sum(1)
        return float(np.sqrt(np.mean(wrong**2)))


def trained(
    problem: Problem, folder: Path, workers: int, pushes: int, n: int = 50, *, driver: str | None = "Point"
) -> tuple[float, Merger]:
    """How wrong the rows are after so many pushes of workers that take turns, each of `n` points from the version that
    there was after its last."""
    folder.mkdir(exist_ok=True)
    of = graph(len(problem.truth))
    replica = Replica(of, Versions(folder / "versions", durable=False))
    replica.start(initial(of, 0))
    merger = Merger(of, replica, workers, driver)
    chance = np.random.default_rng(7)

    def newest() -> ReplicaState:
        now = replica.state
        modules = {KEY: VertexState({NAME: now.modules[KEY].tensors[NAME].copy()})}
        return ReplicaState(modules, {}, {name: changed.copy() for name, changed in now.changed.items()})

    turns = deque((f"w{k}", newest(), 0) for k in range(workers))
    version = 0
    for _ in range(pushes):
        worker, base, began = turns.popleft()
        rows = base.modules[KEY].tensors[NAME].copy()
        problem.train(rows, chance.choice(VERTICES, n, replace=False))
        merge = Merge(version + 1, began, n, (version - began) * n, workers)
        merged, passage = merger.merge(ReplicaPart({KEY: {NAME: rows}}), base, merge, worker)
        if merged is None:  # the replica is where it is pulled, and nothing moves it any more
            assert passage.reason.startswith("its replica is the one that it was given"), passage.reason
        else:
            version += 1
            replica.put(merged.modules, merged.rows, version)
        turns.append((worker, newest(), version))
    return problem.distance(replica.state.modules[KEY].tensors[NAME]), merger


def test_many_workers_are_worth_one_where_rows_are_hardly_pulled(tmp_path: Path) -> None:
    problem = Problem(1, rows=200, each=2, rate=0.005, popular=-0.5)
    one, _ = trained(problem, tmp_path / "one", 1, 400)
    many, _ = trained(problem, tmp_path / "many", 8, 400)
    averaged, _ = trained(problem, tmp_path / "averaged", 8, 400, driver=None)
    assert averaged > 1.5 * one
    assert many - one < 0.5 * (averaged - one)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    rows=st.sampled_from([1, 2, 8, 50, 300]),
    each=st.integers(1, 8),
    rate=st.sampled_from([0.003, 0.02, 0.1]),
    popular=st.sampled_from([0.0, -0.5, -1.0]),
    workers=st.sampled_from([2, 5, 16]),
)
def test_however_strongly_rows_are_pulled_workers_do_not_overshoot(
    seed: int, rows: int, each: int, rate: float, popular: float, workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is trained apart stays as stable as the mean of it."""
    each = min(each, rows)
    problem = Problem(seed, rows, each, rate / each, popular=popular)
    folder = tmp_path_factory.mktemp("run")
    averaged, _ = trained(problem, folder / "averaged", workers, 150, driver=None)
    summed, _ = trained(problem, folder / "summed", workers, 150)
    assert summed <= 1.1 * averaged + 0.01


@pytest.mark.parametrize("rule", [gridml.mean(), gridml.add(), gridml.by_name({"*weight": gridml.mean()})], ids=repr)
def test_a_rule_that_does_not_ask_is_left_alone(rule: Any, tmp_path: Path) -> None:
    of = graph(5, rule)
    replica = Replica(of, Versions(tmp_path / "versions", durable=False))
    replica.start(initial(of, 0))
    assert Merger(of, replica, 2, "Point")._tables_of(KEY) == ()
