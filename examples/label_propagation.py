"""Communities among Facebook's people by label propagation (Raghavan, Albert and Kumara, 2007).

Each person takes the label that most friends have; the own one if it is among these, else the smallest. A pass is a
superstep, in which every second person, drawn again, moves: if all did, two groups could swap labels for ever. The run
ends when nobody would move.
"""

import numpy as np

import gridml
from gridml import counters

PEOPLE, EPOCHS = 4_039, 200


class Shared(gridml.Vertex):  # one vertex, which every stage may take
    restless = gridml.accumulator("int64")
    labels = gridml.counter(PEOPLE)  # working memory: those of one person's friends
    aggregate = gridml.owned()


class Person(gridml.Vertex):
    label = gridml.array("int64", mutable=True)
    friends = gridml.edge("Person")


@gridml.exchange(over=Person)
def listen(person: Person, friends: gridml.Links[Person], at: Shared) -> None:
    counters.empty(at.labels)
    for friend in friends:
        counters.put(at.labels, friend.end.label)
    most, own, best = 0, 0, person.label
    for i in range(counters.size(at.labels)):
        label, count = at.labels[0, i], at.labels[1, i]
        if count > most or (count == most and label < best):
            most, best = count, label
        if label == person.label:
            own = count
    if most > own:
        at.restless += 1
        if gridml.uniform() < 0.5:
            person.label = best


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.restless == 0)


def network(source: np.ndarray, target: np.ndarray, people: int) -> gridml.Graph:
    """The graph of friendships between `people` people, integers (friendships,)."""
    friends, g = gridml.edge_list(source, target, people, both=True), gridml.Graph()
    g.add(Shared)
    g.add(Person, label=np.arange(people), friends=friends)
    return g


def graph() -> gridml.Graph:
    edges = gridml.datasets.snap("facebook")
    return network(edges.source, edges.target, edges.vertices)


def evaluate(people: gridml.Batch[Person]) -> dict[str, float]:
    _, sizes = np.unique(people.label, return_counts=True)
    return {"communities": len(sizes), "largest": int(sizes.max())}


program = gridml.Program(graph, [gridml.MiniBatch([listen, enough])], evaluate, epochs=EPOCHS)
