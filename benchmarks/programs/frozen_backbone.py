"""A small head on a frozen backbone of 25 million parameters, over images of MNIST."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import gridml

COUNT, TESTED, INNER, FEATURES = 1_280, 1_000, 5_000, 4_215


class Headed(nn.Module):
    """Features that are not trained, with a linear layer on top."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Flatten(), nn.Linear(784, INNER), nn.ReLU(), nn.Linear(INNER, FEATURES), nn.ReLU()
        self.backbone = nn.Sequential(*layers).requires_grad_(False)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.backbone(images.float() / 255))
        return scores


class Network(gridml.Vertex):
    model = gridml.module(Headed, partial(torch.optim.SGD, lr=0.5, momentum=0.9))


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=64, min_batch=16)
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(F.cross_entropy(network.model(images.pixels), images.label))


def graph() -> gridml.Graph:
    data = gridml.datasets.mnist().train
    g = gridml.Graph()
    g.add(Image, pixels=data.images[:COUNT], label=data.labels[:COUNT], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    data = gridml.datasets.mnist().test
    network.model.eval()
    with torch.no_grad():
        guessed = network.model(torch.tensor(data.images[:TESTED])).argmax(1).numpy()
    return {"accuracy": float((guessed == data.labels[:TESTED]).mean())}


program = gridml.Program(graph, train, evaluate, epochs=1)
