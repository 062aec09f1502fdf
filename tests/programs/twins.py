"""Several module vertices of one type, most chunks with edges to one of them. Each counts its trained points."""

import numpy as np
import torch
from torch import nn

import gridml

COUNT, NETWORKS, EPOCHS = 14, 3, 3


class Counter(nn.Module):
    """A parameter of whole numbers, so that sums are exact, with random initial values: workers need the master's."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.randint(0, 1000, (2,)).double())
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


class Network(gridml.Vertex):
    model = gridml.module(Counter)
    aggregate = gridml.add()


class Point(gridml.Vertex):
    network = gridml.edge(Network)


@gridml.update(batch=2)
def train(points: gridml.Batch[Point], network: Network) -> None:
    with torch.no_grad():
        network.model.number += len(points)
        network.model.steps += len(points)


def network_of() -> np.ndarray:
    return np.arange(COUNT) * NETWORKS // COUNT


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected growth of each number when point i was trained `trained[i]` times."""
    totals = np.bincount(network_of(), trained, NETWORKS)
    return {f"Network/{i}/model/{name}": totals[i] for i in range(NETWORKS) for name in ("number", "steps")}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Network, NETWORKS)
    g.add(Point, COUNT, network=network_of())
    return g


program = gridml.Program(graph, train, epochs=EPOCHS, shuffle="none")
