"""25 million parameters."""

from functools import partial

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import Wide


class Network(gridml.Vertex):
    model = gridml.module(Wide, partial(torch.optim.SGD, lr=0.05))


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=128)
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(F.cross_entropy(network.model(images.pixels.float() / 255), images.label))


def graph() -> gridml.Graph:
    data = gridml.datasets.mnist().train
    g = gridml.Graph()
    g.add(Image, pixels=data.images[:5_120], label=data.labels[:5_120], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    test = gridml.datasets.mnist().test
    with torch.no_grad():
        guessed = network.model(torch.tensor(test.images[:2_000]).float() / 255).argmax(1)
    return {"accuracy": float((guessed.numpy() == test.labels[:2_000]).mean())}


program = gridml.Program(graph, train, evaluate, epochs=1)
