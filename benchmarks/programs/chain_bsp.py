"""The chain of chain.py without replicas. In every superstep a vertex computes its number from its neighbour's number
of the superstep before, so a field that is a superstep ahead or behind anywhere changes the result."""

import numpy as np

import gridml

COUNT, EPOCHS = 700, 3


class Cell(gridml.Vertex):
    link = gridml.array("int64", mutable=True)
    left = gridml.edge("Cell")


@gridml.update(batch=10)
def train(cells: gridml.Batch[Cell], left: gridml.Batch[Cell]) -> None:
    cells.link = (cells.link + 2 * left.link[cells.left.index]) * 48271 % 2147483647


def first() -> np.ndarray:
    return np.arange(1, COUNT + 1) * 7919


def expected(epochs: int) -> dict[str, np.ndarray]:
    """Return the expected values after a number of epochs, by type and field."""
    link = first()
    for _ in range(epochs):
        link = (link + 2 * np.roll(link, 1)) * 48271 % 2147483647
    return {"Cell/link": link}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Cell, link=first(), left=(np.arange(COUNT) - 1) % COUNT)
    return g


def evaluate(cells: gridml.Batch[Cell]) -> dict[str, float]:
    return {"links": int(cells.link.sum())}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
