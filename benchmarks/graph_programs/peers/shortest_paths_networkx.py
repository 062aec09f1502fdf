"""Shortest paths among Slashdot's users over a graph of networkx: whoever has become nearer tells the neighbours."""

from math import inf, isfinite
from typing import Any

import networkx as nx
import numpy as np

import gridml

START = 0


def network(source: Any, target: Any, length: Any, places: int) -> Any:
    if not (length >= 0).all():
        raise ValueError(f"the shortest road is {length.min()} long; expected lengths from 0 on")
    roads = nx.MultiDiGraph()
    roads.add_nodes_from(range(places))
    roads.add_weighted_edges_from(zip(source.tolist(), target.tolist(), length.tolist(), strict=True))
    return roads


def distances(roads: Any) -> dict[int, float]:
    distance, changed = {**dict.fromkeys(roads, inf), START: 0.0}, [START]
    while changed:
        nearest: dict[int, float] = {}
        for place in changed:
            for _, next_one, length in roads.out_edges(place, data="weight"):
                nearest[next_one] = min(nearest.get(next_one, inf), distance[place] + length)
        changed = [place for place, found in nearest.items() if found < distance[place]]
        for place in changed:
            distance[place] = nearest[place]
    return distance


def main() -> None:
    edges = gridml.datasets.snap("slashdot")
    length = np.log2(1.0 + np.bincount(edges.source, minlength=edges.vertices))[edges.source]
    reached = [*filter(isfinite, distances(network(edges.source, edges.target, length, edges.vertices)).values())]
    print({"reached": len(reached), "furthest": max(reached)})
