"""8 million rows of 1 KB on disk: a linear regression over one column's sum."""

import os
from functools import partial

import numpy as np
import torch

import gridml


class Network(gridml.Vertex):
    model = gridml.module(partial(torch.nn.Linear, 1_024, 1), partial(torch.optim.SGD, lr=1e-3))


class Row(gridml.Vertex):
    values = gridml.array("uint8", (1_024,))
    network = gridml.edge(Network)


@gridml.update(batch=1_024)
def train(rows: gridml.Batch[Row], network: Network) -> None:
    values = rows.values.float()
    network.step((network.model(values)[:, 0] - values[:, 0]).square().mean())


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Row, values=np.load(os.environ["ROWS"], mmap_mode="r"), network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=1)
