"""A ResNet-50 (He et al., arXiv 1512.03385, table 1) on random images of 224 by 224, under bfloat16 autocast."""

import os
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

TINY = "GRIDML_TINY" in os.environ  # to see that it works
COUNT, BATCH, EPOCHS, CLASSES, SIDE = (64, 4, 2, 5, 32) if TINY else (4096, 128, 4, 1000, 224)
GROUPS = ((1, 16, 1), (1, 32, 2)) if TINY else ((3, 256, 1), (4, 512, 2), (6, 1024, 2), (3, 2048, 2))
optimiser = partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        middle = outside // 4
        self.body = nn.Sequential(
            *(nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(True)),
            *(nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(True)),
            *(nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside)),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.around(x))


def network() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for blocks, outside, stride in GROUPS:
        for block in range(blocks):
            layers.append(Bottleneck(inside, outside, stride if block == 0 else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


def columns() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (COUNT, 3, SIDE, SIDE), np.uint8), rng.integers(0, CLASSES, COUNT)


def loss_of(model: nn.Module, pixels: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(pixels.float().div_(255)), label)


class Network(gridml.Vertex):
    model = gridml.module(network, optimiser)


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (3, SIDE, SIDE))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(loss_of(network.model, images.pixels, images.label))


def graph() -> gridml.Graph:
    pixels, label = columns()
    g = gridml.Graph()
    g.add(Image, pixels=pixels, label=label, network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)
