"""A transformer over the rows of MNIST's images, by AdamW: 4,800 images, for experiments that need many runs."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import gridml

COUNT, TESTED, WIDTH = 4_800, 4_000, 32


class Rows(nn.Module):
    """28 tokens an image, two layers of attention, and a vote of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(28, WIDTH) * 0.02)
        self.read = nn.Linear(28, WIDTH)
        layer = partial(nn.TransformerEncoderLayer, WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.Sequential(layer(), layer())
        self.vote = nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        voted: torch.Tensor = self.vote(self.layers(self.read(images.view(-1, 28, 28)) + self.place).mean(1))
        return voted


class Network(gridml.Vertex):
    model = gridml.module(Rows, partial(torch.optim.AdamW, lr=3e-3))


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=64, min_batch=16)
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
