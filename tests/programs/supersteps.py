"""PageRank by f: nothing is replicated, so epochs are supersteps: pages read the ranks of the previous epoch."""

import numpy as np

import gridml

PAGES, LINKS, DAMPING = 2000, 8, 0.85


class Page(gridml.Vertex):
    rank = gridml.array("float64", mutable=True)
    steps = gridml.array("int64", mutable=True)
    degree = gridml.array("int64")  # links that leave the page
    linked_by = gridml.edge("Page")  # the pages that link to the page


@gridml.update(batch=256)
def walk(pages: gridml.Batch[Page], linked_by: gridml.Batch[Page]) -> None:
    links = pages.linked_by
    page = np.repeat(np.arange(len(pages)), np.diff(links.offsets))
    flow = (linked_by.rank / linked_by.degree)[links.index]
    pages.rank = (1 - DAMPING) / PAGES + DAMPING * np.bincount(page, flow, len(pages))
    pages.steps += 1


def web() -> tuple[np.ndarray, np.ndarray]:
    """(from, to) of the links between the pages: a few pages are much more popular than the rest."""
    rng = np.random.default_rng(1)
    source = np.repeat(np.arange(PAGES), rng.integers(1, 2 * LINKS, PAGES))
    return source, (PAGES * rng.random(len(source)) ** 2).astype(np.int64)


def graph() -> gridml.Graph:
    source, target = web()
    grouped = np.argsort(target, kind="stable")
    offsets = np.searchsorted(target[grouped], np.arange(PAGES + 1))
    g = gridml.Graph()
    g.add(
        Page,
        rank=np.full(PAGES, 1 / PAGES),
        steps=np.zeros(PAGES, np.int64),
        degree=np.bincount(source, minlength=PAGES),
        linked_by=gridml.csr(offsets, source[grouped]),
    )
    return g


def evaluate(pages: gridml.Batch[Page]) -> dict[str, float]:
    """Compare with a power iteration on the dense matrix, with the same number of steps."""
    source, target = web()
    matrix = np.zeros((PAGES, PAGES))
    np.add.at(matrix, (target, source), 1 / np.bincount(source, minlength=PAGES)[source])
    rank = np.full(PAGES, 1 / PAGES)
    for _ in range(int(pages.steps.max())):
        rank = (1 - DAMPING) / PAGES + DAMPING * matrix @ rank
    return {
        "steps": pages.steps.max(),
        "steps_least": pages.steps.min(),
        "difference": np.abs(pages.rank - rank).max(),
        "total": pages.rank.sum(),
        "best": pages.rank.argmax(),
    }


program = gridml.Program(graph, walk, evaluate, epochs=15)
