"""Communities among Facebook's people over a graph of networkx: each takes the label that most friends have."""

from collections import Counter
from random import Random
from typing import Any

import networkx as nx

import gridml


def network(source: Any, target: Any, people: int) -> Any:
    friends = nx.Graph()
    friends.add_nodes_from(range(people))
    friends.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    return friends


def labels(friends: Any, seed: int = 0) -> dict[int, int]:
    label, rng, restless = {person: person for person in friends}, Random(seed), True
    while restless:
        restless, new = False, dict(label)
        for person in friends:
            counts = Counter(label[friend] for friend in friends[person])
            most = max(counts.values(), default=0)
            if most > counts[label[person]]:
                restless = True
                if rng.random() < 0.5:
                    new[person] = min(each for each, count in counts.items() if count == most)
        label = new
    return label


def main() -> None:
    edges = gridml.datasets.snap("facebook")
    sizes = Counter(labels(network(edges.source, edges.target, edges.vertices)).values())
    print({"communities": len(sizes), "largest": max(sizes.values())})
