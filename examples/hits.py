"""Hubs and authorities among Slashdot's users by stages, in both directions of the links in each pass.

A good hub links to good authorities (Kleinberg, "Authoritative sources in a hyperlinked environment", 1999). A pass
has two phases: all hubs praise what they link to, and when the sums are known, they look at the new authorities. Both
sum up to 1. The run ends when a pass moves the hubs by less than ENOUGH in all. See docs/linked.md.
"""

import numpy as np

import gridml

ENOUGH, EPOCHS = 1e-8, 1_000


class Shared(gridml.Vertex):  # one vertex, which every stage may take
    all_praise, all_cited = gridml.array("float64"), gridml.array("float64")
    praise, cited, moved = (gridml.accumulator("float64") for _ in range(3))
    aggregate = gridml.owned()


class Page(gridml.Vertex):
    hub, authority = (gridml.array("float64", mutable=True) for _ in range(2))
    linked_by = gridml.array("float64")  # links that lead to it
    praise = gridml.accumulator("float64")
    links = gridml.edge("Page")


@gridml.exchange(over=Page)
def send(page: Page, linked: Page) -> None:
    linked.praise += page.hub


@gridml.apply(Page)
def settle(page: Page, at: Shared) -> None:
    page.authority = page.praise
    at.praise += page.praise
    at.cited += page.praise * page.linked_by


@gridml.global_sync
def add_up(shared: Shared) -> None:  # all parts wait here: what follows sees the authorities of all pages
    shared.all_praise, shared.all_cited = shared.praise, shared.cited


@gridml.exchange(over=Page)
def look(page: Page, links: gridml.Links[Page], at: Shared) -> None:
    hub = 0.0
    for link in links:
        hub += link.end.authority
    hub /= at.all_cited
    at.moved += abs(hub - page.hub)
    page.hub = hub
    page.authority /= at.all_praise


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.moved < ENOUGH)


def network(source: np.ndarray, target: np.ndarray, pages: int) -> gridml.Graph:
    """The graph of links between `pages` pages, integers (links,)."""
    g, linked_by = gridml.Graph(), np.bincount(target, minlength=pages)
    if not len(source):
        raise ValueError("there are no links; without any, no page is a hub")
    g.add(Shared, all_praise=0, all_cited=0)
    links = gridml.edge_list(source, target, pages)
    g.add(Page, hub=1 / pages, authority=0, linked_by=linked_by, links=links)
    return g


def graph() -> gridml.Graph:
    edges = gridml.datasets.snap("slashdot")
    return network(edges.source, edges.target, edges.vertices)


def evaluate(pages: gridml.Batch[Page]) -> dict[str, float]:
    return {"total": float(pages.hub.sum()), "hub": int(pages.hub.argmax()), "authority": int(pages.authority.argmax())}


work = gridml.MiniBatch([send, settle, add_up, look, enough])
program = gridml.Program(graph, [work], evaluate, epochs=EPOCHS)
