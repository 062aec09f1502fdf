"""Hubs and authorities, and steps from the first page: three phases of a pass, each a superstep on linked pages."""

import numpy as np

import gridml

PAGES, LINKS, PASSES = 120, 6, 5


class Shared(gridml.Vertex):
    praise, cited, reached = gridml.accumulator("float64"), gridml.accumulator("float64"), gridml.accumulator("int64")
    all_praise, all_cited = gridml.array("float64"), gridml.array("float64")
    last_reached = gridml.array("int64")
    aggregate = gridml.owned()


class Page(gridml.Vertex):
    hub, authority = gridml.array("float64", mutable=True), gridml.array("float64", mutable=True)
    steps, is_new = gridml.array("int64", mutable=True), gridml.array("bool", mutable=True)
    linked_by = gridml.array("float64")
    praise, nearest = gridml.accumulator("float64"), gridml.accumulator("int64", by="min")
    links = gridml.edge("Page", seen=gridml.array("float64", mutable=True))


@gridml.exchange(over=Page)
def send(page: Page, linked: Page) -> None:
    linked.praise += page.hub


@gridml.apply(Page)
def settle(page: Page, at: Shared) -> None:
    page.authority = page.praise
    at.praise += page.praise
    at.cited += page.praise * page.linked_by


@gridml.global_sync
def add_up(shared: Shared) -> None:
    shared.all_praise, shared.all_cited = shared.praise, shared.cited


@gridml.exchange(over=Page)
def look(page: Page, links: gridml.Links[Page], at: Shared) -> None:
    hub = 0.0
    for link in links:
        hub += link.end.authority
        link.seen += link.end.authority
    page.hub = hub / at.all_cited
    page.authority /= at.all_praise


@gridml.global_sync
def wait(shared: Shared) -> None:
    pass


@gridml.exchange(over=Page, when="is_new")
def reach(page: Page, linked: Page) -> None:
    linked.nearest = min(linked.nearest, page.steps + 1)


@gridml.apply(Page)
def arrive(page: Page, at: Shared) -> None:
    page.is_new = page.nearest < page.steps
    if page.is_new:
        page.steps = page.nearest
        at.reached += 1


@gridml.global_sync
def count(shared: Shared) -> None:
    shared.last_reached = shared.reached


def web() -> tuple[np.ndarray, np.ndarray]:
    """(offsets, targets) of the links; some pages have none, and a few are much more popular than the rest."""
    rng = np.random.default_rng(1)
    degree = rng.integers(0, 2 * LINKS, PAGES)
    return np.concatenate([[0], np.cumsum(degree)]), (PAGES * rng.random(degree.sum()) ** 2).astype(np.int64)


def graph() -> gridml.Graph:
    (offsets, targets), g = web(), gridml.Graph()
    is_first = np.arange(PAGES) == PAGES - 1
    g.add(Shared, all_praise=0, all_cited=0, last_reached=0)
    pages = {"hub": 1 / PAGES, "authority": 0, "steps": np.where(is_first, 0, PAGES), "is_new": is_first}
    linked_by = np.bincount(targets, minlength=PAGES)
    g.add(Page, **pages, linked_by=linked_by, links=gridml.csr(offsets, targets, seen=np.zeros(len(targets))))
    return g


def evaluate(pages: gridml.Batch[Page]) -> dict[str, float]:
    return {"total": float(pages.hub.sum()), "furthest": int(pages.steps[pages.steps < PAGES].max())}


work = gridml.MiniBatch([send, settle, add_up, look, wait, reach, arrive, count], parts=4, exact=True)
program = gridml.Program(graph, [work], evaluate, epochs=PASSES)
