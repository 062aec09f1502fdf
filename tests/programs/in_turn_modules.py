"""Sums and held-back values of a module's merge rules are read in the next epoch: f counts vertices without them."""

import numpy as np
import torch
from torch import nn

import gridml

COUNT, NETWORKS, EPOCHS = 14, 2, 4


class Counter(nn.Module):
    """The rule of `level` holds back all moves of an epoch until its end."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(EPOCHS, dtype=torch.float64))
        self.register_buffer("sums", torch.zeros(EPOCHS + 1, dtype=torch.int64))
        self.register_buffer("incomplete", torch.zeros((), dtype=torch.int64))
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))


class Network(gridml.Vertex):
    model = gridml.module(Counter)
    aggregate = gridml.by_name({"*level": gridml.fedbuff(least=1000), "*": gridml.add()})


class Point(gridml.Vertex):
    network = gridml.edge(Network)


@gridml.update(batch=2)
def train(points: gridml.Batch[Point], network: Network, at: gridml.Progress) -> None:
    model, epoch = network.model, at.epoch
    behind = epoch > 0 and (int(model.sums[epoch]) != COUNT // NETWORKS or float(model.level[epoch - 1]) == 0)
    model.incomplete += len(points) * int(behind)
    model.sums[epoch + 1] += len(points)
    model.trained += len(points)
    with torch.no_grad():
        model.level[epoch] += len(points)


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected values when point i was trained `trained[i]` times."""
    totals = np.bincount(np.arange(COUNT) * NETWORKS // COUNT, trained, NETWORKS)
    expected = {"incomplete": np.zeros_like(totals), "trained": totals}
    return {f"Network/{i}/model/{name}": each[i] for i in range(NETWORKS) for name, each in expected.items()}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Network, NETWORKS)
    g.add(Point, COUNT, network=np.arange(COUNT) * NETWORKS // COUNT)
    return g


program = gridml.Program(graph, train, epochs=EPOCHS, shuffle="none", overlap=False)
