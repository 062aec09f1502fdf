"""A small network whose first and last layer share their weight, trained on synthetic points."""

from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

COUNT, WIDTH, EPOCHS = 48, 4, 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(values)))  # type: ignore[no-any-return]


class Network(gridml.Vertex):
    model = gridml.module(Tied, partial(torch.optim.SGD, lr=0.01))


class Point(gridml.Vertex):
    values = gridml.array("float32", (WIDTH,))
    network = gridml.edge(Network)


@gridml.update(batch=8)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step((network.model(points.values) ** 2).mean())


def graph() -> gridml.Graph:
    values = np.random.default_rng(3).normal(size=(COUNT, WIDTH)).astype(np.float32)
    g = gridml.Graph()
    g.add(Point, values=values, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return {"norm": network.model.first.weight.norm().item()}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS, keep="best:min:norm")
