"""Communities among Facebook's people with networkx's own function, in which people move one after the other."""

from typing import Any

import networkx as nx

import gridml


def communities(source: Any, target: Any, people: int) -> list[set[int]]:
    friends = nx.Graph()
    friends.add_nodes_from(range(people))
    friends.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    return [*nx.community.asyn_lpa_communities(friends, seed=1)]


def main() -> None:
    edges = gridml.datasets.snap("facebook")
    found = communities(edges.source, edges.target, edges.vertices)
    print({"communities": len(found), "largest": max(map(len, found))})
