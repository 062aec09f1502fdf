"""MNIST one vertex at a time, as in Figure 2 of the paper: f runs on one image and updates its one neighbour."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import gridml

IMAGES = 2000  # of the 60,000: an f for one vertex is the simplest to write, but not the fastest


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


class Network(gridml.Vertex):  # replicated
    model = gridml.module(perceptron, partial(torch.optim.SGD, lr=0.02))

    def aggregate(self, replica: "Network", merge: gridml.Merge) -> None:  # g
        self.model.average_with(replica.model, merge.weight)


class Image(gridml.Vertex):  # local
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update
def train(image: Image) -> None:  # f
    network = image.get_neighbours()[0]
    data, model = image.get_data(), network.get_data()
    scores = model(data["pixels"].float() / 255)
    network.step(F.cross_entropy(scores, torch.tensor([data["label"]])))
    image.update_value(network.get_id(), model)


def graph() -> gridml.Graph:
    data = gridml.datasets.mnist().train
    g = gridml.Graph()
    network = g.add(Network)
    g.add(Image, pixels=data.images[:IMAGES], label=data.labels[:IMAGES], network=network)
    return g


def evaluate(network: Network) -> dict[str, float]:
    data = gridml.datasets.mnist().test
    with torch.no_grad():
        found = network.model(torch.tensor(data.images).float() / 255).argmax(1).numpy()
    return {"accuracy": (found == data.labels).mean()}


program = gridml.Program(graph, train, evaluate, epochs=3)
