"""The examples whose vertices are linked agree with scipy and networkx, and end alike on workers that are killed."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

import gridml
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.datasets import SnapGraph
from master.backends.script import ScriptedLives
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from remote.stepped import Trainer
from tests.support.effort import first
from tests.support.stage_programs import module_in

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["pagerank", "hits", "components", "shortest_paths", "label_propagation"]


def drawn(seed: int, vertices: int = 400, degree: float = 1.5) -> SnapGraph:
    """A random graph with popular vertices, edges to themselves, and vertices that nothing leads to or from."""
    rng = np.random.default_rng(seed)
    edges = int(vertices * degree)
    source = rng.integers(0, vertices, edges)
    return SnapGraph(source, (vertices * rng.random(edges) ** 2).astype(np.int64), vertices)


def module(name: str) -> ModuleType:
    return module_in(EXAMPLES / f"{name}.py")


def computed(made: ModuleType, *network: Any) -> dict[str, np.ndarray]:
    """What an example computes on another network."""
    found = gridml.compute(replace(made.program, graph=partial(made.network, *network)))
    assert found.ended_by == "enough"
    return found.arrays


@pytest.mark.parametrize("seed", first(2, [1, 2, 3, 4]))
@pytest.mark.parametrize("degree", [0.0, 1.5, 20.0])
def test_pagerank_solves_its_equation(seed: int, degree: float) -> None:
    made, edges = module("pagerank"), drawn(seed, degree=degree)
    n, damping = edges.vertices, made.DAMPING
    out = np.bincount(edges.source, minlength=n)
    matrix = np.zeros((n, n))
    np.add.at(matrix, (edges.target, edges.source), 1 / out[edges.source])
    matrix[:, out == 0] = 1 / n
    exact = np.linalg.solve(np.eye(n) - damping * matrix, np.full(n, (1 - damping) / n))
    rank = computed(made, edges.source, edges.target, n)["Page.rank"]
    assert np.abs(rank - exact).sum() < made.ENOUGH * damping / (1 - damping)


@pytest.mark.parametrize("seed", first(2, [1, 2, 3, 4]))
@pytest.mark.parametrize("degree", [0.0, 0.8, 20.0])
def test_components_are_those_of_scipy(seed: int, degree: float) -> None:
    edges = drawn(seed, degree=degree)
    label = computed(module("components"), edges.source, edges.target, edges.vertices)["Node.label"]
    pairs = csr_matrix((np.ones(len(edges.source)), (edges.source, edges.target)), (edges.vertices,) * 2)
    _, expected = connected_components(pairs, directed=False)
    smallest = np.array([np.flatnonzero(expected == each)[0] for each in expected])
    np.testing.assert_array_equal(label, smallest)


@pytest.mark.parametrize("seed", first(2, [1, 2, 3, 4]))
@pytest.mark.parametrize("degree", [0.0, 1.5, 20.0])
def test_distances_are_those_of_scipy(seed: int, degree: float) -> None:
    edges = drawn(seed, degree=degree)
    length = np.random.default_rng(seed).random(len(edges.source)) + 0.01
    distance = computed(module("shortest_paths"), edges.source, edges.target, length, edges.vertices)["Place.distance"]
    shortest = np.full((edges.vertices, edges.vertices), np.inf)  # of several roads the shortest
    np.minimum.at(shortest, (edges.source, edges.target), length)
    expected = dijkstra(csr_matrix(np.where(np.isinf(shortest), 0, shortest)), indices=0)
    np.testing.assert_allclose(distance, expected, rtol=1e-13)
    assert degree > 10 or np.isinf(distance).any()


def test_shortest_paths_refuse_a_negative_length() -> None:
    with pytest.raises(ValueError, match=r"the shortest road is -0\.5 long"):
        module("shortest_paths").network(np.array([0, 1]), np.array([1, 0]), np.array([1.0, -0.5]), 2)


@pytest.mark.parametrize("seed", first(2, [1, 2, 3, 4]))
def test_every_label_is_one_that_most_friends_have(seed: int) -> None:
    edges = drawn(seed, degree=4.0)
    label = computed(module("label_propagation"), edges.source, edges.target, edges.vertices)["Person.label"]
    friends: list[list[int]] = [[] for _ in label]
    for a, b in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        friends[a].append(label[b])
        friends[b].append(label[a])
    for own, theirs in zip(label, friends, strict=True):
        counts = np.bincount(theirs) if theirs else np.zeros(1)
        assert not theirs or counts[own] == counts.max()


def test_label_propagation_finds_groups_that_are_there() -> None:
    """Four groups of 30, with one friendship between two of them: the partition of networkx, too."""
    networkx = pytest.importorskip("networkx")
    rng = np.random.default_rng(0)
    pairs = [(30 * g + i, 30 * g + j) for g in range(4) for i in range(30) for j in range(i) if rng.random() < 0.6]
    edges = np.array([*pairs, *((30 * g, 30 * ((g + 1) % 4)) for g in range(4))])
    label = computed(module("label_propagation"), edges[:, 0], edges[:, 1], 120)["Person.label"]
    theirs = networkx.community.asyn_lpa_communities(networkx.Graph(edges.tolist()), seed=1)
    assert {frozenset(np.flatnonzero(label == each)) for each in label} == {frozenset(each) for each in theirs}


@pytest.mark.parametrize("name", NAMES)
def test_workers_that_are_killed_end_as_one_process_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gridml.datasets, "snap", lambda name: drawn(5, vertices=240, degree=3.0))
    file, costs = EXAMPLES / f"{name}.py", Costs(exec_s=0.1, start_s=0.5, push_s=0.1)
    scenario = Scenario(ScriptedLives(3, Exponential(20.0), seed=1, grace_s=2.0), costs, turn_s=0.1, seed=1)
    settings = Settings(file, backend="simulated", workers=3, seed=1, steps_each=0)
    world = play_scenario(settings, scenario, tmp_path / "run", trainer=Trainer(file, costs, 1))
    assert world.pool.tally.kills > 0
    verify_credits(tmp_path / "run")
    expected, found = gridml.compute(file, seed=1), gridml.load(tmp_path / "run")
    for field, values in expected.arrays.items():
        if name in ("pagerank", "hits"):  # parts sum up contexts one after the other
            np.testing.assert_allclose(found[field], values, rtol=1e-12, atol=1e-15)
        else:
            assert found[field].tobytes() == values.tobytes(), field


@pytest.fixture(autouse=True)
def _forget() -> Any:
    """Let no later test find a module of an example."""
    before = {*sys.modules}
    yield
    for each in {*sys.modules} - before:
        if getattr(sys.modules[each], "__file__", None) in {str(EXAMPLES / f"{name}.py") for name in NAMES}:
            del sys.modules[each]
