"""Two towers that rank items for people, with embedding tables. A push touches most of their rows at most once.

Clicks are drawn from a model of four factors and noise, so no data is needed. TABLES names the rule of both tables.
"""

import os
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

BATCH, RATE = int(os.environ.get("BATCH", "128")), float(os.environ.get("RATE", "0.006"))
PEOPLE, ITEMS, WIDTH, FACTORS = 2_000, 1_000, 16, 4
COUNT, TESTED, BEST = 40_000, 20_000, 20
AMONG = 128  # clicks in one softmax, independent of the batch: the task must not depend on how workers share a batch


class Towers(nn.Module):
    """A table and two layers for people, and for items."""

    def __init__(self) -> None:
        super().__init__()
        self.person, self.item = nn.Embedding(PEOPLE, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.of_person, self.of_item = (
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)
        )

    def forward(self, people: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Scores (people, items)."""
        scores: torch.Tensor = self.of_person(self.person(people)) @ self.of_item(self.item(items)).T
        return scores


RULE = getattr(gridml, os.environ.get("RULE", "stale_mean"))()
TABLE = getattr(gridml, os.environ.get("TABLES", "stale_mean"))()


class Network(gridml.Vertex):
    aggregate = gridml.by_name({"*person.weight": TABLE, "*item.weight": TABLE, "*": RULE})
    model = gridml.module(Towers, partial(torch.optim.Adam, lr=RATE))


class Click(gridml.Vertex):
    person = gridml.array("int64")
    item = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(clicks: gridml.Batch[Click], network: Network) -> None:
    loss = torch.zeros(())
    for people, items in zip(clicks.person.split(AMONG), clicks.item.split(AMONG), strict=True):
        loss += F.cross_entropy(network.model(people, items), torch.arange(len(people)), reduction="sum")
    network.step(loss / len(clicks.person))


@cache
def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(people, items), both int64 (count,): clicks."""
    tastes = np.random.default_rng(7)
    people, items = tastes.normal(size=(PEOPLE, FACTORS)), tastes.normal(size=(ITEMS, FACTORS))
    random = np.random.default_rng(seed)
    who = random.integers(0, PEOPLE, count)
    return who, (1.5 * people[who] @ items.T + random.gumbel(size=(count, ITEMS))).argmax(1)


def graph() -> gridml.Graph:
    people, items = drawn(COUNT, 1)
    g = gridml.Graph()
    g.add(Click, person=people, item=items, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    people, items = map(torch.from_numpy, drawn(TESTED, 2))
    network.model.eval()
    with torch.no_grad():
        best = network.model(people, torch.arange(ITEMS)).topk(BEST).indices
    return {"recall": float((best == items[:, None]).any(1).float().mean())}


program = gridml.Program(graph, train, evaluate, epochs=6)
