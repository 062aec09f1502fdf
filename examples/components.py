"""Connected components of the addresses in Enron's mail: the smallest number of a component spreads along its edges.

A pass is a superstep. Only addresses whose label has changed send it on, and the run ends when none has.
"""

import numpy as np

import gridml

EPOCHS = 100_000  # at most; a chain of n vertices needs n passes


class Shared(gridml.Vertex):  # one vertex, which every stage may take
    changed = gridml.accumulator("int64")
    aggregate = gridml.owned()


class Node(gridml.Vertex):
    label = gridml.array("int32", mutable=True)
    changed = gridml.array("bool", mutable=True)
    least = gridml.accumulator("int32", by="min")
    links = gridml.edge("Node")


@gridml.exchange(over=Node, when="changed")
def spread(node: Node, linked: Node) -> None:
    linked.least = min(linked.least, node.label)


@gridml.apply(Node)
def settle(node: Node, at: Shared) -> None:
    node.changed = node.least < node.label
    if node.changed:
        node.label = node.least
        at.changed += 1


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.changed == 0)


def network(source: np.ndarray, target: np.ndarray, nodes: int) -> gridml.Graph:
    """The graph of edges between `nodes` vertices, integers (edges,), each of which is walked in both directions."""
    links, g = gridml.edge_list(source, target, nodes, both=True), gridml.Graph()
    g.add(Shared)
    g.add(Node, label=np.arange(nodes, dtype=np.int32), changed=True, links=links)
    return g


def graph() -> gridml.Graph:
    edges = gridml.datasets.snap("enron")
    return network(edges.source, edges.target, edges.vertices)


def evaluate(nodes: gridml.Batch[Node]) -> dict[str, float]:
    _, sizes = np.unique(nodes.label, return_counts=True)
    return {"components": len(sizes), "largest": int(sizes.max())}


program = gridml.Program(graph, [gridml.MiniBatch([spread, settle, enough])], evaluate, epochs=EPOCHS)
