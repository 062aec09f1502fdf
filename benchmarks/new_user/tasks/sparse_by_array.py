"""Sparse logistic regression, by arrays."""

import numpy as np

import gridml
from benchmarks.new_user.models import people


class Feature(gridml.Vertex):
    weight = gridml.array("float32")
    aggregate = gridml.stale_mean()


class Person(gridml.Vertex):
    rich = gridml.array("float32")
    features = gridml.edge(Feature)


@gridml.update(batch=32)
def train(people: gridml.Batch[Person], features: gridml.Batch[Feature]) -> None:
    index, offsets = people.features.index, people.features.offsets
    of = np.repeat(np.arange(len(people.rich)), np.diff(offsets))
    wrong = people.rich - 1 / (1 + np.exp(-np.bincount(of, features.weight[index], len(people.rich))))
    gradient = np.bincount(index, wrong[of], len(features.weight)) / len(wrong)
    features.weight += (0.5 * gradient).astype(np.float32)


def graph() -> gridml.Graph:
    rich, offsets, features = people()
    g = gridml.Graph()
    g.add(Feature, weight=np.zeros(124, np.float32))
    g.add(Person, rich=rich[:24_000], features=gridml.csr(offsets[:24_001], features[: offsets[24_000]]))
    return g


def evaluate(features: gridml.Batch[Feature]) -> dict[str, float]:
    rich, offsets, index = people()
    score = np.add.reduceat(features.weight[index], offsets[:-1])
    return {"accuracy": float(((score > 0) == rich)[24_000:].mean())}


program = gridml.Program(graph, train, evaluate, epochs=3)
