"""Click-through prediction: a factorisation machine on sparse rows, with a replicated row of 1 + RANK numbers for each
feature.

GRIDML_GRAPH names a graph file in a format of `gridml place`: impressions and their features. Clicks follow hidden
weights. Every tenth impression is held out. Rendle, "Factorization Machines", 2010, equation 1.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np

import gridml
from gridml.placement.files.registry import read

RANK = int(os.environ.get("RANK", "8"))
BATCH, RATE = int(os.environ.get("BATCH", "32")), float(os.environ.get("RATE", "0.01"))


class Feature(gridml.Vertex):
    weight = gridml.array("float32")
    taste = gridml.array("float32", (RANK,))
    aggregate = gridml.stale_mean()


class Impression(gridml.Vertex):
    clicked = gridml.array("float32")
    features = gridml.edge(Feature)


def scores(weight: np.ndarray, taste: np.ndarray, row: np.ndarray, feature: np.ndarray) -> tuple[np.ndarray, ...]:
    """(the score of each row, the sum of the tastes of its features) of edges row -> feature, rows without a gap."""
    theirs = taste[feature]
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    together = np.add.reduceat(theirs, begins)
    pairs = 0.5 * ((together**2).sum(1) - np.add.reduceat((theirs**2).sum(1), begins))
    return np.add.reduceat(weight[feature], begins) + pairs, together


@gridml.update(batch=BATCH)
def train(impressions: gridml.Batch[Impression], features: gridml.Batch[Feature]) -> None:
    feature = impressions.features.index
    row = np.repeat(np.arange(len(impressions)), np.diff(impressions.features.offsets))
    score, together = scores(features.weight, features.taste, row, feature)
    step = RATE * (impressions.clicked - 1 / (1 + np.exp(-score)))[row]
    taste = features.taste[feature]
    np.add.at(features.weight, feature, step)
    np.add.at(features.taste, feature, step[:, None] * (together[row] - taste))


@cache
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offsets int64 (n + 1,), features int64 (edges,), clicked float32 (n,))."""
    graph = read(Path(os.environ["GRIDML_GRAPH"]))
    rng = np.random.default_rng(2)
    hidden = rng.normal(0, 1.0, graph.columns)
    score = np.add.reduceat(hidden[graph.neighbours], graph.offsets[:-1]) / np.sqrt(graph.degrees)
    clicked = rng.random(graph.rows) < 1 / (1 + np.exp(-2 * score))
    return graph.offsets, graph.neighbours.astype(np.int64), clicked.astype(np.float32)


def of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(degrees, features, clicked) of some rows."""
    offsets, features, clicked = data()
    degrees = np.diff(offsets)[rows]
    at = np.repeat(offsets[:-1][rows] - np.cumsum(degrees) + degrees, degrees) + np.arange(degrees.sum())
    return degrees, features[at], clicked[rows]


def graph() -> gridml.Graph:
    offsets, features, _ = data()
    degrees, mine, clicked = of(np.flatnonzero(np.arange(len(offsets) - 1) % 10))
    start = np.random.default_rng(3)
    count = int(features.max()) + 1
    taste = start.normal(0, 0.02, (count, RANK)).astype(np.float32)
    g = gridml.Graph()
    g.add(Feature, weight=np.zeros(count, np.float32), taste=taste)
    g.add(Impression, clicked=clicked, features=gridml.csr(np.concatenate([[0], np.cumsum(degrees)]), mine))
    return g


def evaluate(features: gridml.Batch[Feature]) -> dict[str, float]:
    degrees, mine, clicked = of(np.arange(0, len(data()[0]) - 1, 10))
    score, _ = scores(features.weight, features.taste, np.repeat(np.arange(len(degrees)), degrees), mine)
    return {"loss": float(np.mean(np.logaddexp(0, score) - clicked * score))}


program = gridml.Program(graph, train, evaluate, epochs=4)
