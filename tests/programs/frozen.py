"""A small head on a frozen backbone of 450,000 parameters. Points keep their loss, so epochs do not overlap, and
workers wait between them."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

COUNT, WIDTH, INNER, FEATURES = 640, 50, 1_000, 400


class Headed(nn.Module):
    """Features of two frozen layers, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, FEATURES), nn.ReLU()
        self.backbone = nn.Sequential(*layers).requires_grad_(False)
        self.head = nn.Linear(FEATURES, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.backbone(values))
        return scores


class Network(gridml.Vertex):
    model = gridml.module(Headed, partial(torch.optim.SGD, lr=0.05))


class Point(gridml.Vertex):
    values = gridml.array("float32", (WIDTH,))
    label = gridml.array("int64")
    loss = gridml.array("float32", mutable=True)
    network = gridml.edge(Network)


@gridml.update(batch=32)
def train(points: gridml.Batch[Point], network: Network) -> None:
    losses = F.cross_entropy(network.model(points.values), points.label, reduction="none")
    points.loss = losses.detach()
    network.step(losses.mean())


def graph() -> gridml.Graph:
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, COUNT)
    values = rng.normal(size=(COUNT, WIDTH)) + label[:, None] * 0.2
    g = gridml.Graph()
    g.add(
        Point, values=values.astype(np.float32), label=label, loss=np.zeros(COUNT, np.float32), network=g.add(Network)
    )
    return g


def evaluate(network: Network) -> dict[str, float]:
    return {"head": float(network.model.head.weight.detach().norm())}


program = gridml.Program(graph, train, evaluate, epochs=3)
