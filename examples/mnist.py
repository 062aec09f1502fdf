"""Train LeNet on MNIST: 60,000 image vertices train replicas of one network vertex."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import gridml


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class Network(gridml.Vertex):  # replicated: every chunk trains a replica of it
    model = gridml.module(lenet, partial(torch.optim.SGD, lr=0.05, momentum=0.9))
    aggregate = gridml.stale_mean()  # g: merges a trained replica into the network


class Image(gridml.Vertex):  # local: each image is in one chunk
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=64, min_batch=16)
def train(images: gridml.Batch[Image], network: Network) -> None:  # f: runs on the workers
    scores = network.model(images.pixels.float() / 255)
    network.step(F.cross_entropy(scores, images.label))


def graph() -> gridml.Graph:  # on the submit host
    data = gridml.datasets.mnist().train
    g = gridml.Graph()
    network = g.add(Network)
    g.add(Image, pixels=data.images, label=data.labels, network=network)
    return g


def evaluate(network: Network) -> dict[str, object]:  # on the submit host, after every epoch
    data = gridml.datasets.mnist().test
    with torch.no_grad():
        found = network.model(torch.tensor(data.images).float() / 255).argmax(1).numpy()
    right = found == data.labels
    return {
        "accuracy": right.mean(),
        "accuracy_per_digit": [right[data.labels == digit].mean() for digit in range(10)],
    }


program = gridml.Program(graph, train, evaluate, epochs=12)
