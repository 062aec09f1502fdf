"""A sum of numbers on which f fails once it is absurd: after one worker has spoilt it, the others fail."""

import numpy as np

import gridml

COUNT, EPOCHS, ABSURD = 2000, 2, 1e9


class Sum(gridml.Vertex):
    value = gridml.array("float64")
    aggregate = gridml.add()


class Number(gridml.Vertex):
    value = gridml.array("float64")
    total = gridml.edge(Sum)


@gridml.update(batch=10)
def train(numbers: gridml.Batch[Number], total: Sum) -> None:
    if abs(total.value) > ABSURD:
        raise ValueError(f"the sum is {total.value}")
    total.value = total.value + numbers.value.sum()


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Number, value=np.ones(COUNT), total=g.add(Sum, value=np.zeros(1)))
    return g


def evaluate(total: Sum) -> dict[str, float]:
    return {"sum": float(total.value)}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
