"""SimCLR: photos learned without labels, from pairs of crops (Chen et al., ICML 2020, equation 1)."""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH, HEAT = 4_000, 2_000, 6, 128, 0.5
adam = partial(torch.optim.Adam, lr=1e-3)


class Encoder(nn.Module):
    """Three convolutions, and the projection whose outputs are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
            *(nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.head(self.body(images)), dim=1)


def cropped(images: Tensor) -> Tensor:
    """Random crops of uint8 (n, 3, 32, 32), flipped, brighter or darker, and with other contrast, as float32."""
    n = len(images)
    scale, flip = torch.empty(n, 1, 1).uniform_(0.4, 1.0), torch.randint(0, 2, (n, 1, 1)) * 2 - 1
    move = torch.empty(n, 2, 1).uniform_(-1, 1) * (1 - scale)
    grid = torch.cat([torch.eye(2) * scale * torch.cat([flip, torch.ones(n, 1, 1)], 2), move], 2)
    crops = F.grid_sample(images.float() / 127.5 - 1, F.affine_grid(grid, [n, 3, 32, 32], False), align_corners=False)
    return crops * torch.empty(n, 3, 1, 1).uniform_(0.6, 1.4) + torch.empty(n, 3, 1, 1).uniform_(-0.4, 0.4)


def loss(model: nn.Module, images: Tensor) -> Tensor:
    """Each crop must find the other crop of its photo among the crops of the batch."""
    n = len(images)
    codes = model(torch.cat([cropped(images), cropped(images)]))
    alike = (codes @ codes.T / HEAT).fill_diagonal_(-torch.inf)
    return F.cross_entropy(alike, torch.arange(2 * n).roll(n))


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
    """Return the share of photos whose 20 nearest neighbours among those trained are mostly of the same class."""
    images, labels, held_out, right = data()
    near, far = (
        F.normalize(
            torch.cat([model.get_submodule("body")(part.float() / 127.5 - 1) for part in photos.split(500)]), dim=1
        )
        for photos in (images, held_out)
    )
    votes = F.one_hot(labels[(far @ near.T).topk(20).indices], 10).sum(1)
    return {"accuracy": float((votes.argmax(1) == right).float().mean())}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Encoder()
    optimiser = adam(model.parameters())
    images = data()[0]
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            loss(model, images[batch]).backward()
            optimiser.step()
    return score(model)


class Network(gridml.Vertex):
    model = gridml.module(Encoder, adam)


class Photo(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 32, 32))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(photos: gridml.Batch[Photo], network: Network) -> None:
    network.step(loss(network.model, photos.pixels))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Photo, pixels=data()[0].numpy(), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return score(network.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
