"""A program of which only the costs matter: so many vertices beside one replicated vertex, and an f that does nothing.

A simulated run is a run as any other, so it needs a program file; `source` writes one.
"""

from __future__ import annotations

import gridml


class Network(gridml.Vertex):
    """Stands for what is trained; it has no tensors, so none travels."""

    aggregate = gridml.mean()


class Item(gridml.Vertex):
    network = gridml.edge(Network)


@gridml.update(batch=1)
def train(items: gridml.Batch[Item], network: Network) -> None:
    """Nothing: time is all that it takes."""


def program_of(vertices: int, epochs: int) -> gridml.Program:
    """Return a program of `vertices` vertices, trained `epochs` times."""

    def graph() -> gridml.Graph:
        g = gridml.Graph()
        network = g.add(Network)
        g.add(Item, vertices, network=network)
        return g

    return gridml.Program(graph, train, epochs=epochs, shuffle="none")


def source(vertices: int, epochs: int) -> str:
    """Return the text of a program file."""
    return (
        '"""Vertices that only cost time, written by gridml simulate."""\n\n'
        "from master.simulation.cost_program import program_of\n\n"
        f"program = program_of({vertices}, {epochs})\n"
    )
