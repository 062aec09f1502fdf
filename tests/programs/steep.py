"""Least squares by SGD with momentum, at a rate near the largest that a loop can bear."""

import os
from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

COUNT, WIDTH, BATCH = 3_200, 10, 64
RULE = getattr(gridml, os.environ.get("RULE", "stale_mean"))()


class Network(gridml.Vertex):
    aggregate = RULE
    model = gridml.module(lambda: nn.Linear(WIDTH, 1), partial(torch.optim.SGD, lr=0.2, momentum=0.9))


class Point(gridml.Vertex):
    x = gridml.array("float32", (WIDTH,))
    y = gridml.array("float32")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step(((network.model(points.x)[:, 0] - points.y) ** 2).mean())


def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(COUNT, WIDTH)) * np.geomspace(1.0, 0.05, WIDTH)).astype(np.float32)
    return x, (x @ rng.normal(size=WIDTH) + 0.1 * rng.normal(size=COUNT)).astype(np.float32)


def graph() -> gridml.Graph:
    x, y = sample()
    g = gridml.Graph()
    g.add(Point, x=x, y=y, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    """The mean square error beyond that of the best network, in thousandths."""
    x, y = sample()
    ones = np.column_stack([x, np.ones(len(x))])
    best = float(np.linalg.lstsq(ones, y, rcond=None)[1][0]) / len(x)
    with torch.no_grad():
        error = ((network.model(torch.from_numpy(x))[:, 0] - torch.from_numpy(y)) ** 2).mean()
    return {"excess": 1e3 * (float(error) - best)}


program = gridml.Program(graph, train, evaluate, epochs=3, schedule=gridml.constant)
