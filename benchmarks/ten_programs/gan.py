"""GAN: a generator and a discriminator of digits, each with an optimiser of its own."""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH, NOISE = 6_000, 2_000, 12, 64, 64
adam = partial(torch.optim.Adam, lr=2e-4, betas=(0.5, 0.999))


def generator() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(NOISE, 256), nn.LeakyReLU(0.2), nn.Linear(256, 512), nn.LeakyReLU(0.2)),
        *(nn.Linear(512, 784), nn.Tanh()),
    )


def discriminator() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 256), nn.LeakyReLU(0.2)),
        nn.Linear(256, 1),
    )


def loss(discriminate: nn.Module, images: Tensor, real: float) -> Tensor:
    scores = discriminate(images)
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, real))


@cache
def data() -> tuple[Tensor, Tensor]:
    """(trained, tested): float32 (n, 784) from -1 to 1."""
    digits = gridml.datasets.mnist()
    parts = (digits.train.images[:COUNT], digits.test.images[:TESTED])
    trained, tested = (torch.tensor(part).flatten(1).float() / 127.5 - 1 for part in parts)
    return trained, tested


@cache
def principal() -> Tensor:
    axes: Tensor = torch.linalg.eigh(torch.cov(data()[1].T)).eigenvectors[:, -32:]
    return axes


@torch.no_grad()
def score(generate: nn.Module) -> dict[str, float]:
    """Return the Fréchet distance of 2,000 generated from 2,000 real images, in 32 principal components of these."""
    axes = principal()
    made = generate(torch.randn(TESTED, NOISE, generator=torch.Generator().manual_seed(1)))
    a, b = data()[1] @ axes, made @ axes
    common = torch.linalg.eigvals(torch.cov(a.T) @ torch.cov(b.T)).real.clamp(min=0).sqrt().sum()
    apart = (a.mean(0) - b.mean(0)).square().sum()
    return {"distance": float(apart + torch.cov(a.T).trace() + torch.cov(b.T).trace() - 2 * common)}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    generate, discriminate = generator(), discriminator()
    of_generator, of_discriminator = adam(generate.parameters()), adam(discriminate.parameters())
    images = data()[0]
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            made = generate(torch.randn(len(batch), NOISE))
            of_discriminator.zero_grad()
            (loss(discriminate, images[batch], 1.0) + loss(discriminate, made.detach(), 0.0)).backward()
            of_discriminator.step()
            of_generator.zero_grad()
            loss(discriminate, made, 1.0).backward()
            of_generator.step()
    return score(generate)


class Generator(gridml.Vertex):
    model = gridml.module(generator, adam)


class Discriminator(gridml.Vertex):
    model = gridml.module(discriminator, adam)


class Image(gridml.Vertex):
    pixels = gridml.array("float32", (784,))
    generator = gridml.edge(Generator)
    discriminator = gridml.edge(Discriminator)


@gridml.update(batch=BATCH)
def train(images: gridml.Batch[Image], generator: Generator, discriminator: Discriminator) -> None:
    made = generator.model(torch.randn(len(images.pixels), NOISE))
    real, false = loss(discriminator.model, images.pixels, 1.0), loss(discriminator.model, made.detach(), 0.0)
    discriminator.step(real + false)
    generator.step(loss(discriminator.model, made, 1.0))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    pixels = data()[0].numpy()
    g.add(Image, pixels=pixels, generator=g.add(Generator), discriminator=g.add(Discriminator))
    return g


def evaluate(generator: Generator) -> dict[str, float]:
    return score(generator.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
