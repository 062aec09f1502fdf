"""PageRank of Slashdot's users with networkx's own function."""

from typing import Any

import networkx as nx

import gridml


def ranks(source: Any, target: Any, pages: int) -> dict[int, float]:
    links = nx.MultiDiGraph()
    links.add_nodes_from(range(pages))
    links.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    found: dict[int, float] = nx.pagerank(links, 0.85, tol=1e-8 / pages, max_iter=200)
    return found


def main() -> None:
    edges = gridml.datasets.snap("slashdot")
    rank = ranks(edges.source, edges.target, edges.vertices)
    best = max(rank, key=lambda page: rank[page])
    print({"total": sum(rank.values()), "best": best, "most": rank[best]})
