"""LeNet on 6,000 images of MNIST, by the optimiser that OPTIMISER names, SGD by default, and the merge rule that RULE
names, for experiments that need many runs. With MODEL=perceptron, one hidden layer on 4,000 of them."""

import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

import gridml

TINY = "GRIDML_TINY" in os.environ  # for a quick check
MODEL = os.environ.get("MODEL", "lenet")
COUNT, TESTED = (512, 256) if TINY else (6_000 if MODEL == "lenet" else 4_000, 4_000)
BATCH, RATE = int(os.environ.get("BATCH", "64")), float(os.environ.get("RATE", "0.05"))


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


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def optimiser(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    name = os.environ.get("OPTIMISER", "SGD")
    more = {"momentum": 0.9} if name == "SGD" else {}
    made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=RATE, **more)
    return made


class Network(gridml.Vertex):
    aggregate = getattr(gridml, os.environ.get("RULE", "stale_mean"))()
    model = gridml.module({"lenet": lenet, "perceptron": perceptron}[MODEL], optimiser)


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=max(1, BATCH // 16))
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(F.cross_entropy(network.model(images.pixels.float() / 255), images.label))


def graph() -> gridml.Graph:
    data = gridml.datasets.mnist().train
    g = gridml.Graph()
    g.add(Image, pixels=data.images[:COUNT], label=data.labels[:COUNT], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    data = gridml.datasets.mnist().test
    network.model.eval()
    with torch.no_grad():
        guessed = network.model(torch.tensor(data.images[:TESTED]).float() / 255).argmax(1).numpy()
    return {"accuracy": float((guessed == data.labels[:TESTED]).mean())}


program = gridml.Program(graph, train, evaluate, epochs=6)
