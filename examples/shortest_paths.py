"""Shortest paths from one of Slashdot's users to all others, by minima at the ends of edges (Bellman, 1958).

A link is as long as the logarithm of the links that leave its start: many links are each worth less. A pass is a
superstep. Only users whose distance has changed are looked at, and the run ends when none has.
"""

import numpy as np

import gridml

START, EPOCHS = 0, 100_000  # a chain of n vertices needs n passes


class Shared(gridml.Vertex):  # one vertex, which every stage may take
    changed = gridml.accumulator("int64")
    aggregate = gridml.owned()


class Place(gridml.Vertex):
    distance = gridml.array("float64", mutable=True)  # infinity: not reached
    changed = gridml.array("bool", mutable=True)
    nearest = gridml.accumulator("float64", by="min")
    roads = gridml.edge("Place", weight="float64")


@gridml.exchange(over=Place, when="changed")
def reach(place: Place, next_one: Place, road: gridml.Link) -> None:
    next_one.nearest = min(next_one.nearest, place.distance + road.weight)


@gridml.apply(Place)
def settle(place: Place, at: Shared) -> None:
    place.changed = place.nearest < place.distance
    if place.changed:
        place.distance = place.nearest
        at.changed += 1


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.changed == 0)


def network(source: np.ndarray, target: np.ndarray, length: np.ndarray, places: int) -> gridml.Graph:
    """The graph of roads, (roads,) each, between `places` places, the first of which is START."""
    if not (length >= 0).all():
        raise ValueError(f"the shortest road is {length.min()} long; expected lengths from 0 on")
    roads, distance, g = gridml.edge_list(source, target, places, length), np.full(places, np.inf), gridml.Graph()
    distance[START] = 0.0
    g.add(Shared)
    g.add(Place, distance=distance, changed=distance == 0, roads=roads)
    return g


def graph() -> gridml.Graph:
    edges = gridml.datasets.snap("slashdot")
    degree = np.bincount(edges.source, minlength=edges.vertices)
    return network(edges.source, edges.target, np.log2(1.0 + degree)[edges.source], edges.vertices)


def evaluate(places: gridml.Batch[Place]) -> dict[str, float]:
    reached = np.isfinite(places.distance)
    return {"reached": int(reached.sum()), "furthest": float(places.distance[reached].max())}


program = gridml.Program(graph, [gridml.MiniBatch([reach, settle, enough])], evaluate, epochs=EPOCHS)
