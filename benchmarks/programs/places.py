"""Next-place prediction: predicts the place of a visit from 20 other visits of a person. Two embedding tables, by Adam
on Gowalla.

GRIDML_DATA names a folder with `recsys/gowalla-train.tsv.gz` (of LightGCN: a person and a place per line). Visits are
drawn from its 2,000 most visited places; the last 3,000 are held out.
"""

import gzip
import os
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

BATCH, RATE = int(os.environ.get("BATCH", "64")), float(os.environ.get("RATE", "0.02"))
PLACES, PAST, WIDTH = 2_000, 20, 32
COUNT, TESTED, BEST = 30_000, 3_000, 20
AMONG = 64  # visits in one softmax, independent of the batch: the task must not depend on how workers share a batch


class Tables(nn.Module):
    """A table for visited places, and one for candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.past, self.place = nn.EmbeddingBag(PLACES, WIDTH, mode="mean"), nn.Embedding(PLACES, WIDTH)
        for table in (self.past, self.place):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, past: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores (people, places) of each place for each person's past."""
        scores: torch.Tensor = self.past(past) @ self.place(places).T
        return scores


class Network(gridml.Vertex):
    aggregate = getattr(gridml, os.environ.get("RULE", "stale_mean"))()
    model = gridml.module(Tables, partial(torch.optim.Adam, lr=RATE))


class Visit(gridml.Vertex):
    past = gridml.array("int64", (PAST,))
    place = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(visits: gridml.Batch[Visit], network: Network) -> None:
    loss = torch.zeros(())
    for past, places in zip(visits.past.split(AMONG), visits.place.split(AMONG), strict=True):
        loss += F.cross_entropy(network.model(past, places), torch.arange(len(places)), reduction="sum")
    network.step(loss / len(visits.place))


@cache
def visits() -> tuple[np.ndarray, np.ndarray]:
    """(past int64 (n, PAST), place int64 (n,)): of people drawn at random from those with 6 places or more."""
    with gzip.open(Path(os.environ["GRIDML_DATA"]) / "recsys" / "gowalla-train.tsv.gz", "rt") as lines:
        person, place = np.loadtxt(lines, dtype=np.int64, usecols=(0, 1)).T
    number = np.full(place.max() + 1, -1)
    number[np.argsort(-np.bincount(place), kind="stable")[:PLACES]] = np.arange(PLACES)
    person, place = person[number[place] >= 0], number[place[number[place] >= 0]]
    order = np.argsort(person, kind="stable")
    theirs = np.split(place[order], np.flatnonzero(np.diff(person[order])) + 1)
    theirs = [places for places in theirs if len(places) > 5]
    random = np.random.default_rng(0)
    drawn = [random.permutation(theirs[random.integers(len(theirs))]) for _ in range(COUNT + TESTED)]
    return np.stack([np.resize(places[1:], PAST) for places in drawn]), np.array([places[0] for places in drawn])


def graph() -> gridml.Graph:
    past, place = visits()
    g = gridml.Graph()
    g.add(Visit, past=past[:COUNT], place=place[:COUNT], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    """Return the share of visits that are among the 20 likeliest places outside of the person's past."""
    past, place = (torch.from_numpy(values[COUNT:]) for values in visits())
    network.model.eval()
    with torch.no_grad():
        scores = network.model(past, torch.arange(PLACES)).scatter(1, past, -torch.inf)
    hits = (scores.topk(BEST).indices == place[:, None]).any(1)
    return {"recall": float(hits.float().mean())}


program = gridml.Program(graph, train, evaluate, epochs=6)
