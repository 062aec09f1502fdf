"""Sparse logistic regression on a9a (UCI Adult: incomes above 50,000 dollars), with one replicated row for each
feature.

GRIDML_DATA names a folder with `libsvm/a9a.gz`; its labels count from 0. The last 8,000 people are not trained.
"""

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np

import gridml

TINY = "GRIDML_TINY" in os.environ  # few random people, for a quick check
FEATURES, TESTED = 124, 100 if TINY else 8_000
BATCH, RATE = int(os.environ.get("BATCH", "32")), float(os.environ.get("RATE", "0.5"))
RULE = os.environ.get("RULE", "stale_mean")


class Feature(gridml.Vertex):
    weight = gridml.array("float32")
    aggregate = getattr(gridml, RULE)()


class Person(gridml.Vertex):
    rich = gridml.array("float32")
    features = gridml.edge(Feature)


@gridml.update(batch=BATCH, min_batch=max(1, BATCH // 4))
def train(people: gridml.Batch[Person], features: gridml.Batch[Feature]) -> None:
    edges = people.features
    of = np.repeat(np.arange(len(edges.offsets) - 1), np.diff(edges.offsets))
    score = np.bincount(of, features.weight[edges.index], len(edges.offsets) - 1)
    wrong = people.rich - 1 / (1 + np.exp(-score))
    gradient = np.bincount(edges.index, wrong[of], len(features.weight)) / len(score)
    features.weight += (RATE * gradient).astype(np.float32)


@cache
def people() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rich float32 (n,), offsets int64 (n+1,), features int64 (m,)); all people have feature 0."""
    if TINY:
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, FEATURES, 5_000)
        return (drawn[::5] < FEATURES // 4).astype(np.float32), np.arange(0, 5_001, 5), drawn
    rich, offsets, features = [], [0], []
    with gzip.open(Path(os.environ["GRIDML_DATA"]) / "libsvm" / "a9a.gz", "rt") as lines:
        for line in lines:
            label, *pairs = line.split()
            rich.append(float(label) > 0)
            features += [0, *(int(pair.partition(":")[0]) for pair in pairs)]
            offsets.append(len(features))
    return np.array(rich, np.float32), np.array(offsets), np.array(features)


def graph() -> gridml.Graph:
    rich, offsets, features = people()
    count = len(rich) - TESTED
    g = gridml.Graph()
    g.add(Feature, weight=np.zeros(FEATURES, np.float32))
    edges = gridml.csr(offsets[: count + 1], features[: offsets[count]])
    g.add(Person, rich=rich[:count], features=edges)
    return g


def evaluate(features: gridml.Batch[Feature]) -> dict[str, float]:
    rich, offsets, index = people()
    score = np.add.reduceat(features.weight[index], offsets[:-1])[-TESTED:]
    rich = rich[-TESTED:]
    loss = np.mean(np.logaddexp(0, score) - rich * score)
    return {"loss": float(loss), "accuracy": float(((score > 0) == rich).mean())}


program = gridml.Program(graph, train, evaluate, epochs=5)
