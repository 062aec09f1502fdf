"""Sparse logistic regression on a9a (UCI Adult) in an embedding table, by Adam: the model of `adult.py`.

GRIDML_DATA names a folder with `libsvm/a9a.gz`. The last 8,000 people are not trained.
"""

import os
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml
from benchmarks.programs.adult import FEATURES, TESTED, people

BATCH, RATE = int(os.environ.get("BATCH", "32")), float(os.environ.get("RATE", "0.005"))
MAX_FEATURES = 15  # of a person; fewer are padded with FEATURES, the padding index


def bag() -> nn.Module:
    made = nn.EmbeddingBag(FEATURES + 1, 1, mode="sum", padding_idx=FEATURES)
    nn.init.zeros_(made.weight)
    return made


class Model(gridml.Vertex):
    aggregate = getattr(gridml, os.environ.get("RULE", "stale_mean"))()
    weights = gridml.module(bag, partial(torch.optim.Adam, lr=RATE))


class Person(gridml.Vertex):
    rich = gridml.array("float32")
    features = gridml.array("int64", (MAX_FEATURES,))
    model = gridml.edge(Model)


def loss(model: Model, rich: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(model.weights(features).squeeze(1), rich)


@gridml.update(batch=BATCH, min_batch=max(1, BATCH // 4))
def train(people: gridml.Batch[Person], model: Model) -> None:
    model.step(loss(model, people.rich, people.features))


def padded() -> tuple[np.ndarray, np.ndarray]:
    """(rich float32 (n,), features int64 (n, MAX_FEATURES))."""
    rich, offsets, features = people()
    rows = np.full((len(rich), MAX_FEATURES), FEATURES)
    rows[np.arange(MAX_FEATURES) < np.diff(offsets)[:, None]] = features
    return rich, rows


def graph() -> gridml.Graph:
    rich, features = padded()
    g = gridml.Graph()
    g.add(Person, rich=rich[:-TESTED], features=features[:-TESTED], model=g.add(Model))
    return g


def evaluate(model: Model) -> dict[str, float]:
    rich, features = (torch.from_numpy(values[-TESTED:]) for values in padded())
    with torch.no_grad():
        return {"loss": float(loss(model, rich, features))}


program = gridml.Program(graph, train, evaluate, epochs=5)
