"""Distillation: a small network learns from a larger, frozen one (Hinton et al. 2015). TRAINED names a folder for the
teacher's weights, which `prepare` makes."""

import os
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH, HEAT = 8_000, 5_000, 10, 64, 4.0
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def teacher() -> nn.Module:
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    if (path := Path(os.environ["TRAINED"]) / "teacher.pt").exists():
        model.load_state_dict(torch.load(path, weights_only=True))
    return model.requires_grad_(False)


def student() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def loss(student: nn.Module, teacher: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        soft = F.softmax(teacher(images) / HEAT, 1)
    scores = student(images)
    hard = F.cross_entropy(scores, labels)
    return 0.1 * hard + 0.9 * HEAT**2 * F.kl_div(F.log_softmax(scores / HEAT, 1), soft, reduction="batchmean")


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(digits float32 (n, 1, 28, 28) from 0 to 1, labels int64 (n,)), trained and tested."""
    digits = gridml.datasets.mnist()
    train, test = digits.train, digits.test
    parts = (train.images[:COUNT], test.images[:TESTED])
    images, held_out = (torch.tensor(part).view(-1, 1, 28, 28).float() / 255 for part in parts)
    return images, torch.tensor(train.labels[:COUNT]).long(), held_out, torch.tensor(test.labels[:TESTED]).long()


def prepare() -> None:
    """Train the teacher on 20,000 other digits."""
    torch.manual_seed(0)
    model = teacher().requires_grad_(True)
    optimiser = torch.optim.Adam(model.parameters())
    train = gridml.datasets.mnist().train
    for batch in torch.randperm(20_000).add(COUNT).split(64):
        images = torch.tensor(train.images[batch.numpy()]).view(-1, 1, 28, 28).float() / 255
        optimiser.zero_grad()
        F.cross_entropy(model(images), torch.tensor(train.labels[batch.numpy()]).long()).backward()
        optimiser.step()
    torch.save(model.state_dict(), Path(os.environ["TRAINED"]) / "teacher.pt")


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    *_, images, labels = data()
    return {"accuracy": float((model(images).argmax(1) == labels).float().mean())}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model, large = student(), teacher()
    optimiser = sgd(model.parameters())
    images, labels, *_ = data()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            loss(model, large, images[batch], labels[batch]).backward()
            optimiser.step()
    return score(model)


class Network(gridml.Vertex):
    student = gridml.module(student, sgd)
    teacher = gridml.module(teacher)


class Digit(gridml.Vertex):
    pixels = gridml.array("float32", (1, 28, 28))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(digits: gridml.Batch[Digit], network: Network) -> None:
    network.step(loss(network.student, network.teacher, digits.pixels, digits.label))


def graph() -> gridml.Graph:
    images, labels, *_ = (part.numpy() for part in data())
    g = gridml.Graph()
    g.add(Digit, pixels=images, label=labels, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return score(network.student)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
