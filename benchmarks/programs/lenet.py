"""LeNet on MNIST as in examples/mnist.py, with a fixed batch and without evaluation, to measure training alone."""

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import gridml

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from mnist import lenet as lenet

BATCH = 64
COUNT = 1_024 if "GRIDML_TINY" in os.environ else 60_000  # images


class Network(gridml.Vertex):
    model = gridml.module(lenet, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(F.cross_entropy(network.model(images.pixels.float() / 255), images.label))


def graph() -> gridml.Graph:
    data = gridml.datasets.mnist().train
    g = gridml.Graph()
    g.add(Image, pixels=data.images[:COUNT], label=data.labels[:COUNT], network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=3)
