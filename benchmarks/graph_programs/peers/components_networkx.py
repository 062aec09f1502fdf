"""Connected components of Enron's mail over a graph of networkx: the smallest number spreads along the edges."""

from collections import Counter
from typing import Any

import networkx as nx

import gridml


def network(source: Any, target: Any, nodes: int) -> Any:
    links = nx.Graph()
    links.add_nodes_from(range(nodes))
    links.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    return links


def labels(links: Any) -> dict[int, int]:
    label, changed = {node: node for node in links}, [*links]
    while changed:
        least: dict[int, int] = {}
        for node in changed:
            for linked in links[node]:
                least[linked] = min(least.get(linked, label[linked]), label[node])
        changed = [node for node, found in least.items() if found < label[node]]
        for node in changed:
            label[node] = least[node]
    return label


def main() -> None:
    edges = gridml.datasets.snap("enron")
    sizes = Counter(labels(network(edges.source, edges.target, edges.vertices)).values())
    print({"components": len(sizes), "largest": max(sizes.values())})
