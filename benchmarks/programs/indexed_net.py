"""A small network under Adam on 6,000 synthetic rows, with tensors that no optimiser trains: positions that index its
inputs, a mask of them, and the counters and statistics of BatchNorm."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

COUNT, INPUTS, CLASSES = 6_000, 20, 5


class Indexed(nn.Module):
    """Reads its inputs in an untrained order, like the positions and windows of language and vision models."""

    order: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(INPUTS))
        self.register_buffer("mask", torch.ones(INPUTS))
        self.body = nn.Sequential(nn.Linear(INPUTS, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.body((x * self.mask)[:, self.order])
        return scores


class Network(gridml.Vertex):
    model = gridml.module(Indexed, partial(torch.optim.Adam, lr=2e-3))
    aggregate = gridml.stale_mean()


class Row(gridml.Vertex):
    x = gridml.array("float32", (INPUTS,))
    y = gridml.array("int64")
    network = gridml.edge(Network)


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(INPUTS, 64)), rng.normal(size=(64, CLASSES))
    x = np.random.default_rng(seed).normal(size=(COUNT, INPUTS)).astype(np.float32)
    return x, (np.maximum(x @ first, 0) @ second).argmax(1)


@gridml.update(batch=32, min_batch=8)
def train(rows: gridml.Batch[Row], network: Network) -> None:
    network.step(F.cross_entropy(network.model(rows.x), rows.y))


def graph() -> gridml.Graph:
    x, y = data(1)
    g = gridml.Graph()
    g.add(Row, x=x, y=y, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    x, y = data(2)
    network.model.eval()
    with torch.no_grad():
        return {"accuracy": float((network.model(torch.tensor(x)).argmax(1).numpy() == y).mean())}


program = gridml.Program(graph, train, evaluate, epochs=4)
