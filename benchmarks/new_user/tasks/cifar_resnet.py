"""CIFAR-10: a ResNet with BatchNorm and flips."""

from functools import partial

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import resnet


class Network(gridml.Vertex):
    model = gridml.module(resnet, partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4))


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 32, 32))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=64)
def train(batch: gridml.Batch[Image], network: Network) -> None:
    images = batch.pixels.float() / 127.5 - 1
    flipped = torch.where((torch.rand(len(images)) < 0.5)[:, None, None, None], images.flip(3), images)
    network.step(F.cross_entropy(network.model(flipped), batch.label))


def graph() -> gridml.Graph:
    data = gridml.datasets.cifar10(edition="jpeg").train
    g = gridml.Graph()
    g.add(Image, pixels=data.images[:2_000], label=data.labels[:2_000], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    test = gridml.datasets.cifar10(edition="jpeg").test
    network.model.eval()
    with torch.no_grad():
        guessed = network.model(torch.tensor(test.images[:1_000]).float() / 127.5 - 1).argmax(1)
    return {"accuracy": float((guessed.numpy() == test.labels[:1_000]).mean())}


program = gridml.Program(graph, train, evaluate, epochs=2)
