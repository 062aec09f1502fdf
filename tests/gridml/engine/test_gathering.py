"""An engine steps accumulated gradients before a snapshot, and drops them with dropped work."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.engine.engine import Engine, Snapshot
from gridml.model.chunk import cut
from gridml.model.graph import components
from gridml.model.schedule import Progress

seen: list[Progress] = []


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of = nn.Parameter(torch.zeros(8))


class Network(gridml.Vertex):
    model = gridml.module(Counts, partial(torch.optim.SGD, lr=2.0))


class Point(gridml.Vertex):
    number = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=2, accumulate=2)
def train(points: gridml.Batch[Point], at: gridml.Progress, network: Network) -> None:
    seen.append(at)
    network.step(network.model.of[points.number].sum())


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Point, number=np.arange(8), network=g.add(Network))
    return g


@pytest.fixture
def engine() -> Engine:
    made = graph()
    engine = Engine(gridml.Program(graph, train))
    engine.begin(cut(made, "Point", np.arange(8), None, components(made), bsp=False))
    return engine


def weights(snapshot: Snapshot) -> list[float]:
    return snapshot.replica.modules["Network", 0]["Network/0/model/of"].tolist()


def test_a_snapshot_has_the_gradients_of_all_that_was_trained(engine: Engine) -> None:
    for start in (0, 2, 4):
        engine.train(start, start + 2, 1.0)
    assert engine.is_accumulating
    assert weights(engine.snapshot()) == [-1] * 6 + [0] * 2
    assert not engine.is_accumulating
    engine.train(6, 8, 1.0)
    assert weights(engine.snapshot()) == [-1] * 8


@pytest.mark.parametrize("dropped", ["restarted", "refused"])
def test_what_is_dropped_is_not_stepped_later(engine: Engine, dropped: str) -> None:
    start = engine.wire(engine.snapshot())
    engine.train(0, 2, 1.0)
    if dropped == "refused":
        engine.forget_rows()
    else:
        engine.restart(start)
    assert not engine.is_accumulating
    engine.train(4, 6, 1.0)
    engine.train(6, 8, 1.0)
    assert weights(engine.snapshot()) == [0] * 4 + [-1] * 4


def test_a_newer_replica_leaves_what_is_gathered(engine: Engine) -> None:
    engine.train(0, 2, 1.0)
    pushed = engine.snapshot()
    engine.train(2, 4, 1.0)
    engine.rebase(pushed, pushed.replica, 1)
    assert engine.is_accumulating
    assert weights(engine.snapshot()) == [-1] * 4 + [0] * 4


def test_f_gets_the_progress_of_the_run(engine: Engine) -> None:
    seen.clear()
    engine.at = Progress(epoch=2, version=7, share=0.5, step=3, steps=6)
    engine.train(0, 2, 1.0)
    assert seen == [engine.at]
