"""The mean over a tail averages weights and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gridml
from gridml.aggregates import VertexState
from master.evaluation.evaluator import tail_mean
from master.store.versions import ReplicaState, Versions, initial

SGD = partial(torch.optim.SGD, lr=0.1)


def network() -> nn.Module:
    return nn.Sequential(nn.Embedding(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


class Network(gridml.Vertex):
    model = gridml.module(network, SGD)


class Counts(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(1, 1), SGD)
    aggregate = gridml.add()


class Own(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(1, 1), SGD)

    def aggregate(self, replica: Own, merge: gridml.Merge) -> None:  # type: ignore[override]
        self.model.load_state_dict(replica.model.state_dict())


class Point(gridml.Vertex):
    x = gridml.array("float32", (2,))
    network = gridml.edge(Network)
    counts = gridml.edge(Counts)
    own = gridml.edge(Own)


@gridml.update(batch=4)
def train(points: gridml.Batch[Point], network: Network, counts: Counts, own: Own) -> None:
    network.step(network.model(points.x).mean())


def graph() -> gridml.Graph:
    g = gridml.Graph()
    ends = {"network": g.add(Network), "counts": g.add(Counts), "own": g.add(Own)}
    g.add(Point, x=np.zeros((8, 2), np.float32), **ends)
    return g


PROGRAM = gridml.Program(graph, train)
WEIGHTS = {"Network/0/model/1.weight", "Network/0/model/1.bias", "Network/0/model/2.weight", "Network/0/model/2.bias"}


def moved(state: ReplicaState, by: float) -> ReplicaState:
    """Return a state with `by` added to every floating-point tensor."""
    modules = {
        key: VertexState({n: t + t.dtype.type(by) if t.dtype.kind == "f" else t + 1 for n, t in vertex.tensors.items()})
        for key, vertex in state.modules.items()
    }
    return ReplicaState(modules, {}, state.changed)


def test_weights_are_averaged_the_newest_most_and_all_else_is_as_it_is(tmp_path: Path) -> None:
    versions, first = Versions(tmp_path), initial(graph(), 0)
    second, newest = moved(first, 1.0), moved(first, 4.0)
    tail = [(0, versions.write(0, first)), (1, versions.write(1, second))]
    made = dict(tail_mean(newest, tail, versions, PROGRAM).tensors())
    old = dict(first.tensors())
    for name, tensor in newest.tensors():
        if name in WEIGHTS:
            np.testing.assert_allclose(made[name], old[name] + (1 * 0 + 2 * 1 + 3 * 4) / 6, rtol=1e-6, err_msg=name)
            assert made[name].dtype == tensor.dtype
        else:
            np.testing.assert_array_equal(made[name], tensor, err_msg=name)
    assert {name for name, tensor in newest.tensors() if not np.array_equal(made[name], tensor)} == WEIGHTS


def test_the_mean_of_what_stands_still_is_that_to_the_bit(tmp_path: Path) -> None:
    versions, state = Versions(tmp_path), moved(initial(graph(), 0), 1 / 3)
    tail = [(version, versions.write(version, state)) for version in range(7)]
    for name, tensor in tail_mean(state, tail, versions, PROGRAM).tensors():
        np.testing.assert_array_equal(tensor, dict(state.tensors())[name], err_msg=name)


def test_masks_of_64_bits_stay(tmp_path: Path) -> None:
    name, mask = "Network/0/model/2.weight", np.full((2, 1), np.finfo(np.float64).min)
    state = ReplicaState({("Network", 0): VertexState({name: mask})})
    versions = Versions(tmp_path)
    made = tail_mean(state, [(0, versions.write(0, state))], versions, PROGRAM)
    np.testing.assert_array_equal(dict(made.tensors())[name], mask)


def test_a_version_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    versions, state = Versions(tmp_path), initial(graph(), 0)
    sha256 = versions.write(0, moved(state, 3.0))
    versions.path(0).write_bytes(b"damaged")
    assert tail_mean(state, [(0, sha256), (1, None)], versions, PROGRAM) is state
