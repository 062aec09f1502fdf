"""PageRank of Slashdot's users by stages: a pass is a superstep, in which every user reads what the last one left.

Page et al., "The PageRank citation ranking", 1999. The rank of users without links goes to all alike. The run ends when
a pass moves the ranks by less than ENOUGH in all. docs/stages.md explains programs whose vertices are linked.
"""

import numpy as np

import gridml

DAMPING, ENOUGH, EPOCHS = 0.85, 1e-8, 200


class Shared(gridml.Vertex):  # one vertex, which every stage may take
    pages, kept = gridml.array("float64"), gridml.array("float64")
    moved = gridml.accumulator("float64")
    hanging = gridml.accumulator("float64")  # the rank of users without links
    aggregate = gridml.owned()


class Page(gridml.Vertex):
    rank, share = gridml.array("float64", mutable=True), gridml.array("float64", mutable=True)
    degree = gridml.array("float64")  # links that leave it
    flow = gridml.accumulator("float64")
    links = gridml.edge("Page")


@gridml.exchange(over=Page)
def send(page: Page, linked: Page) -> None:
    linked.flow += page.share


@gridml.apply(Page)
def settle(page: Page, at: Shared) -> None:
    rank = (1.0 - DAMPING + DAMPING * at.kept) / at.pages + DAMPING * page.flow
    at.moved += abs(rank - page.rank)
    page.rank, page.share = rank, 0.0
    if page.degree > 0:
        page.share = rank / page.degree
    else:
        at.hanging += rank


@gridml.global_sync
def enough(shared: Shared) -> bool:
    shared.kept = shared.hanging
    return bool(shared.moved < ENOUGH)


def network(source: np.ndarray, target: np.ndarray, pages: int) -> gridml.Graph:
    """The graph of links between `pages` pages, integers (links,)."""
    links, rank, g = gridml.edge_list(source, target, pages), 1.0 / pages, gridml.Graph()
    degree = links.lengths
    g.add(Shared, pages=pages, kept=rank * (degree == 0).sum())
    g.add(Page, rank=rank, share=rank / np.maximum(degree, 1), degree=degree, links=links)
    return g


def graph() -> gridml.Graph:
    edges = gridml.datasets.snap("slashdot")
    return network(edges.source, edges.target, edges.vertices)


def evaluate(pages: gridml.Batch[Page]) -> dict[str, float]:
    return {"total": float(pages.rank.sum()), "best": int(pages.rank.argmax()), "most": float(pages.rank.max())}


program = gridml.Program(graph, [gridml.MiniBatch([send, settle, enough])], evaluate, epochs=EPOCHS)
