"""Sums over rows of 1 KB in the memory-mapped file that ROWS names: copying dominates, with almost no arithmetic."""

import os

import numpy as np

import gridml

WIDTH = 256  # float32


class Total(gridml.Vertex):
    sums = gridml.array("float64", (WIDTH,))
    aggregate = gridml.add()


class Row(gridml.Vertex):
    values = gridml.array("float32", (WIDTH,))
    total = gridml.edge(Total)


@gridml.update(batch=64)
def train(rows: gridml.Batch[Row], total: Total) -> None:
    total.sums = total.sums + rows.values.sum(0)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Row, values=np.load(os.environ["ROWS"], mmap_mode="r"), total=g.add(Total, sums=np.zeros((1, WIDTH))))
    return g


program = gridml.Program(graph, train, epochs=100)
