"""Shortest paths among Slashdot's users with networkx's own function."""

from typing import Any

import networkx as nx
import numpy as np

import gridml


def distances(source: Any, target: Any, length: Any, places: int) -> dict[int, float]:
    roads = nx.MultiDiGraph()
    roads.add_nodes_from(range(places))
    roads.add_weighted_edges_from(zip(source.tolist(), target.tolist(), length.tolist(), strict=True))
    found: dict[int, float] = nx.single_source_dijkstra_path_length(roads, 0)
    return found


def main() -> None:
    edges = gridml.datasets.snap("slashdot")
    length = np.log2(1.0 + np.bincount(edges.source, minlength=edges.vertices))[edges.source]
    found = distances(edges.source, edges.target, length, edges.vertices)
    print({"reached": len(found), "furthest": max(found.values())})
