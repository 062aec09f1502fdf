"""A network of 25 million parameters, 100 MB, over noise: its pushes are expensive, and so are its batches.

`WIDE_OUTER` makes it wider; `WIDE_ROWS` is the number of samples.
"""

import os
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

TINY = "GRIDML_TINY" in os.environ  # for a quick check
COUNT = 1_024 if TINY else int(os.environ.get("WIDE_ROWS", "24576"))
FEATURES, INNER, OUTER = 784, 50 if TINY else 5_000, int(os.environ.get("WIDE_OUTER", "4215"))


class Wide(nn.Sequential):
    def __init__(self) -> None:
        layers = nn.Linear(FEATURES, INNER), nn.ReLU(), nn.Linear(INNER, OUTER), nn.ReLU(), nn.Linear(OUTER, 10)
        super().__init__(*layers)


class Network(gridml.Vertex):
    model = gridml.module(Wide, partial(torch.optim.SGD, lr=0.01))


class Sample(gridml.Vertex):
    features = gridml.array("float32", (FEATURES,))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=256)
def train(samples: gridml.Batch[Sample], network: Network) -> None:
    network.step(F.cross_entropy(network.model(samples.features), samples.label))


def graph() -> gridml.Graph:
    rng = np.random.default_rng(0)
    g = gridml.Graph()
    g.add(
        Sample,
        features=rng.standard_normal((COUNT, FEATURES), np.float32),
        label=rng.integers(0, 10, COUNT),
        network=g.add(Network),
    )
    return g


program = gridml.Program(graph, train, epochs=1)
