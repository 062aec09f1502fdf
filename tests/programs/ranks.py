"""PageRank by stages, on pages that link to one another: a pass is a superstep, and the last one is found by itself."""

import numpy as np

import gridml

PAGES, LINKS, DAMPING, ENOUGH = 300, 6, 0.85, 1e-6


class Shared(gridml.Vertex):
    moved, furthest = gridml.accumulator("float64"), gridml.accumulator("float64", by="max")
    hanging = gridml.accumulator("float64")  # the rank of pages without links
    kept, last_moved = gridml.array("float64"), gridml.array("float64")
    passes = gridml.array("int64")
    aggregate = gridml.owned()


class Page(gridml.Vertex):
    rank = gridml.array("float64", mutable=True)
    degree = gridml.array("float64")
    flow, visits = gridml.accumulator("float64"), gridml.accumulator("int64")
    least = gridml.accumulator("float64", by="min")  # the smallest rank of a page that links to it
    below = gridml.array("float64", mutable=True)
    links = gridml.edge("Page", weight="float64")


@gridml.exchange(over=Page, when="degree")
def send(page: Page, linked: Page, link: gridml.Link) -> None:
    linked.flow += link.weight * page.rank / page.degree
    linked.least = min(linked.least, page.rank)
    linked.visits += 1


@gridml.apply(Page)
def settle(page: Page, at: Shared) -> None:
    rank = (1 - DAMPING) / PAGES + DAMPING * (page.flow + at.kept / PAGES)
    at.moved += abs(rank - page.rank)
    at.furthest = max(at.furthest, abs(rank - page.rank))
    if page.degree == 0:
        at.hanging += rank
    page.below = page.least if page.visits > 0 else -1.0
    page.rank = rank


@gridml.global_sync
def enough(shared: Shared) -> bool:
    shared.passes += 1
    shared.kept, shared.last_moved = shared.hanging, shared.moved
    return bool(shared.moved < ENOUGH)


def web() -> tuple[np.ndarray, np.ndarray]:
    """(offsets, targets) of the links; some pages have none, and a few are much more popular than the rest."""
    rng = np.random.default_rng(1)
    degree = rng.integers(0, 2 * LINKS, PAGES)
    return np.concatenate([[0], np.cumsum(degree)]), (PAGES * rng.random(degree.sum()) ** 2).astype(np.int64)


def graph() -> gridml.Graph:
    offsets, targets = web()
    degree, g = np.diff(offsets), gridml.Graph()
    g.add(Shared, kept=(degree == 0).sum() / PAGES, last_moved=0, passes=0)
    g.add(Page, rank=1 / PAGES, degree=degree, below=0, links=gridml.csr(offsets, targets, weight=1.0))
    return g


def evaluate(pages: gridml.Batch[Page], shared: Shared) -> dict[str, float]:
    return {"total": float(pages.rank.sum()), "passes": int(shared.passes), "moved": float(shared.last_moved)}


program = gridml.Program(graph, [gridml.MiniBatch([send, settle, enough], parts=4, exact=True)], evaluate, epochs=100)
