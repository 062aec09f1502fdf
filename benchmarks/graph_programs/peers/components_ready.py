"""Connected components of Enron's mail with networkx's own function."""

from typing import Any

import networkx as nx

import gridml


def components(source: Any, target: Any, nodes: int) -> list[set[int]]:
    links = nx.Graph()
    links.add_nodes_from(range(nodes))
    links.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    return [*nx.connected_components(links)]


def main() -> None:
    edges = gridml.datasets.snap("enron")
    found = components(edges.source, edges.target, edges.vertices)
    print({"components": len(found), "largest": max(map(len, found))})
