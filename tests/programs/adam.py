"""A line through 1,000 points, by Adam."""

from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

BATCH = 8


class Network(gridml.Vertex):
    model = gridml.module(partial(nn.Linear, 2, 1), partial(torch.optim.Adam, lr=0.01))


class Point(gridml.Vertex):
    place = gridml.array("float32", (2,))
    value = gridml.array("float32")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def fit(points: gridml.Batch[Point], network: Network) -> None:
    network.step(((network.model(points.place).squeeze(1) - points.value) ** 2).mean())


def graph() -> gridml.Graph:
    places = np.random.default_rng(0).normal(size=(1_000, 2)).astype(np.float32)
    g = gridml.Graph()
    g.add(Point, place=places, value=places @ np.float32([1, -2]), network=g.add(Network))
    return g


program = gridml.Program(graph, fit, epochs=1)
