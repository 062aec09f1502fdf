"""Vertices of almost no cost, to measure the overhead around them."""

import numpy as np

import gridml

COUNT = 20_000


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Item(gridml.Vertex):
    total = gridml.edge(Total)


@gridml.update(batch=10)
def train(items: gridml.Batch[Item], total: gridml.Batch[Total]) -> None:
    np.add.at(total.count, items.total.index, 1)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Total, count=np.zeros(1, np.int64))
    g.add(Item, total=np.zeros(COUNT, np.int64))
    return g


program = gridml.Program(graph, train, epochs=1)
