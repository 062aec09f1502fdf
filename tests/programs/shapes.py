"""A model whose shape tests choose by replacing the line of settings below."""

from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gridml

SETTINGS = {"model": "linear", "width": 7, "dtype": "float32", "rows": 100, "batch": 16, "least": 1, "field": "array",
            "optimiser": "SGD", "options": {"lr": 0.1}, "epochs": 2, "hidden": 8, "accumulate": 1}  # fmt: skip
WIDTH, HIDDEN, MODEL, FIELD = (SETTINGS[name] for name in ("width", "hidden", "model", "field"))
SHAPE = {"conv": (2, WIDTH, 5), "lstm": (3, WIDTH), "attention": (3, WIDTH)}.get(MODEL, (WIDTH,))


class Last(nn.Module):
    """The layer that returns the scores for the end of a sequence."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "embedding":
            self.inner = nn.Embedding(50, HIDDEN)
        elif kind == "lstm":
            self.inner = nn.LSTM(WIDTH, HIDDEN, batch_first=True)
        else:
            self.first = nn.Linear(WIDTH, HIDDEN)
            self.inner = nn.MultiheadAttention(HIDDEN, 1, batch_first=True)
        self.scores = nn.Linear(HIDDEN, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "embedding":
            return self.scores(self.inner(x.long() % 50).mean(1))
        if self.kind == "lstm":
            return self.scores(self.inner(x)[0][:, -1])
        h = self.first(x)
        return self.scores(self.inner(h, h, h, need_weights=False)[0].mean(1))


def network() -> nn.Module:
    if MODEL in ("embedding", "lstm", "attention"):
        return Last(MODEL)
    if MODEL == "conv":
        return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(15 * WIDTH, 2))
    norm = [nn.BatchNorm1d(HIDDEN)] if MODEL == "norm" else []
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), *norm, nn.Tanh(), nn.Linear(HIDDEN, 2))


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(SETTINGS["rows"], *SHAPE)) * (3 if np.dtype(SETTINGS["dtype"]).kind in "iu" else 1)
    y = (x.reshape(len(x), -1)[:, 0] > 0).astype(np.int64)
    return np.abs(x).astype(SETTINGS["dtype"]) if SETTINGS["dtype"] == "uint8" else x.astype(SETTINGS["dtype"]), y


class Network(gridml.Vertex):
    model = gridml.module(network, partial(getattr(torch.optim, SETTINGS["optimiser"]), **SETTINGS["options"]))


class Point(gridml.Vertex):
    x = (
        gridml.ragged(SETTINGS["dtype"], SHAPE[1:])
        if FIELD == "ragged"
        else gridml.array(SETTINGS["dtype"], SHAPE, mutable=FIELD == "mutable", shared=FIELD == "shared")
    )
    y = gridml.array("int64")
    network = gridml.edge(Network)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)


if FIELD == "one":

    @gridml.update
    def train(point: Point, network: Network) -> None:
        network.step(loss_of(network.model, point.x[None], torch.tensor([point.y])))

else:

    @gridml.update(batch=SETTINGS["batch"], min_batch=SETTINGS["least"], accumulate=SETTINGS["accumulate"])
    def train(points: gridml.Batch[Point], network: Network) -> None:
        x = torch.stack(list(points.x)) if FIELD == "ragged" else points.x
        network.step(loss_of(network.model, x, points.y))
        if FIELD == "mutable":
            points.x = x * 0.5


def graph() -> gridml.Graph:
    x, y = data()
    g = gridml.Graph()
    if FIELD == "shared":
        np.save("shared.npy", x)
        x = np.load("shared.npy", mmap_mode="r")
    g.add(Point, x=list(x) if FIELD == "ragged" else x, y=y, network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=SETTINGS["epochs"])
