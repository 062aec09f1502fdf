"""PageRank of Slashdot's users over a graph of networkx, link by link, as examples/pagerank.py has it."""

from typing import Any

import networkx as nx

import gridml

DAMPING, ENOUGH = 0.85, 1e-8


def network(source: Any, target: Any, pages: int) -> Any:
    links = nx.MultiDiGraph()
    links.add_nodes_from(range(pages))
    links.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    return links


def ranks(links: Any) -> dict[int, float]:
    degree = dict(links.out_degree)
    rank, moved = dict.fromkeys(links, 1 / len(links)), ENOUGH
    while moved >= ENOUGH:
        flow = dict.fromkeys(links, 0.0)
        for page, linked in links.edges():
            flow[linked] += rank[page] / degree[page]
        hanging = sum(rank[page] for page in links if not degree[page])
        new = {page: (1 - DAMPING + DAMPING * hanging) / len(links) + DAMPING * flow[page] for page in links}
        moved = sum(abs(new[page] - rank[page]) for page in links)
        rank = new
    return rank


def main() -> None:
    edges = gridml.datasets.snap("slashdot")
    rank = ranks(network(edges.source, edges.target, edges.vertices))
    best = max(rank, key=lambda page: rank[page])
    print({"total": sum(rank.values()), "best": best, "most": rank[best]})
