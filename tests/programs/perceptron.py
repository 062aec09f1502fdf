"""A small network on synthetic digits: quick to train, and easy to compare with a plain PyTorch loop."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

COUNT, BATCH, EPOCHS = 1000, 32, 3


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))


def points() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(4, 20))
    label = rng.integers(0, 4, COUNT)
    return (centres[label] + rng.normal(size=(COUNT, 20))).astype(np.float32), label


class Network(gridml.Vertex):
    model = gridml.module(perceptron, partial(torch.optim.SGD, lr=0.05, momentum=0.9))


class Point(gridml.Vertex):
    values = gridml.array("float32", (20,))
    label = gridml.array("int64")
    network = gridml.edge(Network)


def loss_of(model: nn.Module, values: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(values), label)


@gridml.update(batch=BATCH)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step(loss_of(network.model, points.values, points.label))


def graph() -> gridml.Graph:
    values, label = points()
    g = gridml.Graph()
    g.add(Point, values=values, label=label, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    values, label = points()
    network.model.eval()
    with torch.no_grad():
        found = network.model(torch.from_numpy(values)).argmax(1).numpy()
    return {"accuracy": float((found == label).mean())}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
