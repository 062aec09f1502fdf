"""Mixed precision with a cosine schedule: a network with BatchNorm learns photos in bfloat16."""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import gridml

COUNT, TESTED, EPOCHS, BATCH = 4_000, 2_000, 6, 64
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4)


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    images = images.float() / 127.5 - 1
    images = torch.where((torch.rand(len(images)) < 0.5)[:, None, None, None], images.flip(3), images)
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(images), labels)


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(photos uint8 (n, 3, 32, 32), labels int64 (n,)), trained and tested."""
    photos = gridml.datasets.cifar10(edition="jpeg")
    train, test = photos.train, photos.test
    parts = (train.images[:COUNT], train.labels[:COUNT], test.images[:TESTED], test.labels[:TESTED])
    images, labels, held_out, right = map(torch.tensor, parts)
    return images, labels, held_out, right


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    *_, images, labels = data()
    guessed = model.eval()(images.float() / 127.5 - 1).argmax(1)
    return {"accuracy": float((guessed == labels).float().mean())}


def cosine(optimiser: torch.optim.Optimizer, steps: int) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimiser, steps)


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = network()
    optimiser = sgd(model.parameters())
    scheduler = cosine(optimiser, EPOCHS * -(-COUNT // BATCH))
    images, labels, *_ = data()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            loss(model, images[batch], labels[batch]).backward()
            optimiser.step()
            scheduler.step()
    return score(model)


class Network(gridml.Vertex):
    model = gridml.module(network, sgd)


class Photo(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 32, 32))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(photos: gridml.Batch[Photo], network: Network) -> None:
    network.step(loss(network.model, photos.pixels, photos.label))


def graph() -> gridml.Graph:
    images, labels, *_ = (part.numpy() for part in data())
    g = gridml.Graph()
    g.add(Photo, pixels=images, label=labels, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return score(network.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS, schedule=gridml.torch_schedule(cosine))
