"""A small ResNet (He et al., arXiv 1512.03385) on CIFAR-10, with BatchNorm, random crops and flips, and SGD. Torch's
one-cycle schedule (Smith and Topin, arXiv 1708.07120) sets the learning rate and the momentum.

It trains on the first 10,000 photos of the JPEG edition, so that a run takes a minute on one core. Raise PHOTOS to
train on more.

Accuracy on 1,000 photos of the test set after three epochs, seed 0: a plain loop 52.2%; one worker 52.8%; two workers
that live for a minute, with 2 kills, 47.0%. (Each of the two sees half of the photos. BatchNorm's statistics are
recomputed before the evaluation.) A push has 0.32 MB.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import gridml

PHOTOS, HELD_OUT, EPOCHS = 10_000, 1_000, 3
MEAN, DEVIATION = 120.0, 64.0  # of the pixels, rounded
PADDING = 4  # maximum shift of a crop, in pixels


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.past(x) + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


def resnet() -> nn.Module:
    """78,000 parameters."""
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Network(gridml.Vertex):
    model = gridml.module(resnet, partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True))


class Photo(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 32, 32))
    label = gridml.array("int64")
    network = gridml.edge(Network)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() - MEAN) / DEVIATION


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Move each image by a few pixels and mirror half of them. Pixels from outside the image are grey."""
    count, width = len(images), images.shape[-1]
    top, left = torch.randint(0, 2 * PADDING + 1, (2, count, 1))
    rows, columns = top + torch.arange(width), left + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns, columns.flip(1))
    each, channel = torch.arange(count)[:, None, None, None], torch.arange(3)[:, None, None]
    return F.pad(images, (PADDING,) * 4)[each, channel, rows[:, None, :, None], columns[:, None, None, :]]


@gridml.update(batch=64, min_batch=32)
def train(photos: gridml.Batch[Photo], network: Network) -> None:
    loss = F.cross_entropy(network.model(augmented(normalised(photos.pixels))), photos.label)
    gridml.log(loss=loss)
    network.step(loss)


def graph() -> gridml.Graph:
    data = gridml.datasets.cifar10(edition="jpeg").train
    g = gridml.Graph()
    g.add(Photo, pixels=data.images[:PHOTOS], label=data.labels[:PHOTOS], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    data = gridml.datasets.cifar10(edition="jpeg").test
    images, labels = torch.tensor(data.images[:HELD_OUT]), torch.tensor(data.labels[:HELD_OUT])
    with torch.no_grad():
        scores = network.model(normalised(images))
    return {
        "loss": float(F.cross_entropy(scores, labels)),
        "accuracy": float((scores.argmax(1) == labels).float().mean()),
    }


one_cycle = gridml.torch_schedule(lambda optimiser, steps: OneCycleLR(optimiser, 0.2, total_steps=steps))
program = gridml.Program(graph, train, evaluate, epochs=EPOCHS, schedule=one_cycle)
