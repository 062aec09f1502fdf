"""A ResNet-50 (He et al., arXiv 1512.03385, table 1) on random images of 224 by 224, under bfloat16 autocast, with
its channels last in memory. BATCH is the size of a batch. The images are a file that workers map; with CARRIED chunks
carry them."""

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

TINY = "GRIDML_TINY" in os.environ  # for a quick check
COUNT, BATCH, EPOCHS, CLASSES, SIDE = (64, 4, 2, 5, 32) if TINY else (4096, 128, 4, 1000, 224)
BATCH = int(os.environ.get("BATCH", BATCH))
GROUPS = ((1, 16, 1), (1, 32, 2)) if TINY else ((3, 256, 1), (4, 512, 2), (6, 1024, 2), (3, 2048, 2))
optimiser = partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True)


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 with a shortcut."""

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
    whole = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))
    laid_out: nn.Module = whole.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return laid_out


def columns() -> tuple[np.ndarray, np.ndarray]:
    """(pixels uint8 (n, 3, side, side) mapped from a file, classes int64 (n,))."""
    rng, path = np.random.default_rng(1), Path(tempfile.gettempdir()) / f"images-{COUNT}-{SIDE}.npy"
    if not path.exists():
        np.save(made := path.with_suffix(f".{os.getpid()}.npy"), rng.integers(0, 256, (COUNT, 3, SIDE, SIDE), np.uint8))
        made.rename(path)
    return np.load(path, mmap_mode="r"), rng.integers(0, CLASSES, COUNT)


def loss_of(model: nn.Module, pixels: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
        images = pixels.float().div_(255).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(images), label)


class Network(gridml.Vertex):
    model = gridml.module(network, optimiser)


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (3, SIDE, SIDE), shared="CARRIED" not in os.environ)
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
