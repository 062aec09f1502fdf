"""VAE: a variational autoencoder of digits (Kingma and Welling, ICLR 2014, equation 10)."""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH, CODE = 8_000, 1_000, 10, 64, 20
adam = partial(torch.optim.Adam, lr=1e-3)


class Autoencoder(nn.Module):
    """An encoder to the mean and the logarithm of the variance of a code, and a decoder to pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 2 * CODE))
        self.decode = nn.Sequential(nn.Linear(CODE, 300), nn.ReLU(), nn.Linear(300, 784))

    def forward(self, images: Tensor) -> Tensor:
        """The negative bound on the likelihood, in nats an image, of images float32 (n, 784) from 0 to 1."""
        mean, variance = self.encode(images).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (variance / 2).exp()
        wrong = F.binary_cross_entropy_with_logits(self.decode(code), images, reduction="sum")
        divergence = -0.5 * (1 + variance - mean.square() - variance.exp()).sum()
        bound: Tensor = (wrong + divergence) / len(images)
        return bound


@cache
def data() -> tuple[Tensor, Tensor]:
    """(trained, tested): float32 (n, 784) from 0 to 1."""
    digits = gridml.datasets.mnist()
    parts = (digits.train.images[:COUNT], digits.test.images[:TESTED])
    trained, tested = (torch.tensor(part).flatten(1).float() / 255 for part in parts)
    return trained, tested


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return {"loss": float(model(data()[1]))}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Autoencoder()
    optimiser = adam(model.parameters())
    images = data()[0]
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            model(images[batch]).backward()
            optimiser.step()
    return score(model)


class Network(gridml.Vertex):
    model = gridml.module(Autoencoder, adam)


class Image(gridml.Vertex):
    pixels = gridml.array("float32", (784,))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(network.model(images.pixels))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Image, pixels=data()[0].numpy(), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return score(network.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
