"""What is odd about the edges of a graph, or about how f follows them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from gridml.model.graph import Edges, Graph, components
from gridml.model.program import Program
from gridml.model.vertex import describe

FEWEST = 100  # vertices: below that nobody wants several workers


def not_followed(program: Program, graph: Graph, followed: Collection[str]) -> Iterator[str]:
    """Yield for each edge that leads to one vertex each, and that f gets as a Batch without having `followed` it, what
    that Batch holds: rows of two such Batches look as if they belonged together, and do not."""
    update = program.update
    if update.batch is None:
        return
    driver = update.driver.__name__
    for parameter in update.parameters:
        name, edges = parameter.edge, graph.tables[driver].edges[parameter.edge]
        if not parameter.single and name not in followed and _one_each(edges):
            target = parameter.type.name
            yield (
                f"f has not looked at {driver}.{name}.index: its Batch of {target} has one row for each different "
                f"{target}, in the order of their numbers, not one for each {driver}. Where f needs the latter, "
                f"take FIELD[index] with the index of the {driver} batch's {name}"
            )


def one_component(program: Program, graph: Graph, driver: str) -> Iterator[str]:
    """Say so where most vertices that f runs on are joined by edges between local vertices: only one worker at a time
    trains these, in the same order in every epoch."""
    count = graph.tables[driver].count
    parts = None if program.bsp or count < FEWEST else components(graph)
    if parts is None:
        return
    largest = int(np.bincount(parts.label[driver]).max())
    if 2 * largest > count:
        declared = graph.tables[driver].type
        names = [f"{driver}.{name}" for name in declared.edges if not describe(declared.target(name)).replicated]
        yield (
            f"{largest:,} of {count:,} {driver} are connected with one another by edges to local vertices "
            f"({', '.join(names)}), and what is connected is trained by one worker at a time, in one order. Where f "
            f"only reads those vertices, copy what it reads into fields of each {driver} instead"
        )


def _one_each(edges: Edges) -> bool:
    if edges.constant is not None or edges.offsets is None:
        return edges.degree == 1
    return bool((np.diff(edges.offsets) == 1).all())
