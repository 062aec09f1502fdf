"""Cells in a ring without replicas: in every superstep each cell takes its neighbour's value of the previous one."""

import numpy as np

import gridml

COUNT, EPOCHS = 9, 3


class Cell(gridml.Vertex):
    value = gridml.array("int64", mutable=True)
    left = gridml.edge("Cell")


@gridml.update(batch=2)
def train(cells: gridml.Batch[Cell], left: gridml.Batch[Cell]) -> None:
    cells.value = left.value[cells.left.index] + 1


def after(supersteps: int) -> np.ndarray:
    """Return the values after a number of supersteps."""
    return np.roll(np.arange(COUNT) * 10, supersteps) + supersteps


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Cell, value=np.arange(COUNT) * 10, left=(np.arange(COUNT) - 1) % COUNT)
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)
