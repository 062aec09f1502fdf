"""Counted rows of 1 KB: chunks consist of rows, and f does almost no work."""

import numpy as np

import gridml

COUNT, WIDTH = 20_000, 256


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Row(gridml.Vertex):
    values = gridml.array("float32", (WIDTH,))
    total = gridml.edge(Total)


@gridml.update(batch=10)
def train(rows: gridml.Batch[Row], total: gridml.Batch[Total]) -> None:
    np.add.at(total.count, rows.total.index, 1)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    total = g.add(Total, count=np.zeros(1, np.int64))
    g.add(Row, values=np.zeros((COUNT, WIDTH), np.float32), total=total)
    return g


program = gridml.Program(graph, train, epochs=1)
