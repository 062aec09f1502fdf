"""Matrix factorisation for the benchmarks: examples/mf.py with a rate and a ridge for each vertex.

The rate falls with the mean square of the vertex's gradients, as in the reduced schedule of Chin et al., "A
Learning-rate Schedule for Stochastic Gradient Methods to Matrix Factorization", PAKDD 2015, which libmf follows. So it
falls slowly where there are few ratings. The ridge is larger for a vertex with few ratings: the prior of its factors is
one, and its ratings are many or few.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

import gridml
from benchmarks.graph_programs.ratings import Ratings

RANK = 32
SIZE = 1_000  # users in a mini-batch


@dataclass(frozen=True)
class Settings:
    """What is chosen on other ratings."""

    rate: float = 0.2  #: at the beginning
    decay: float = 0.7  #: times which the rate is taken after each pass
    ridge: float = 0.015
    few: float = 5.0  #: is added to the ridge of a vertex, divided by the number of its ratings


class Shared(gridml.Vertex):
    mean, rate = gridml.array("float32"), gridml.array("float32")
    aggregate = gridml.owned()


class Item(gridml.Vertex):
    ridge, bias, moved = gridml.array("float32"), gridml.array("float32"), gridml.array("float32")
    q = gridml.array("float32", (RANK,))
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    ridge = gridml.array("float32")
    bias, moved = gridml.array("float32", mutable=True), gridml.array("float32", mutable=True)
    p = gridml.array("float32", (RANK,), mutable=True)
    rated = gridml.edge(Item, weight="float32")


@gridml.exchange(over=User)
def learn(user: User, item: Item, rating: gridml.Link, at: Shared) -> None:
    error = rating.weight - at.mean - user.bias - item.bias
    for f in range(RANK):
        error -= user.p[f] * item.q[f]
    of_user, of_item = at.rate / sqrt(user.moved), at.rate / sqrt(item.moved)
    user.bias += of_user * (error - user.ridge * user.bias)
    item.bias += of_item * (error - item.ridge * item.bias)
    squares, others = 0.0, 0.0
    for f in range(RANK):
        p, q = user.p[f], item.q[f]
        down, left = error * q - user.ridge * p, error * p - item.ridge * q
        squares += down * down
        others += left * left
        user.p[f] = p + of_user * down
        item.q[f] = q + of_item * left
    user.moved += squares / RANK
    item.moved += others / RANK


def program(ratings: Ratings, settings: Settings, seed: int = 0, epochs: int = 20) -> gridml.Program:
    """Return the program for some ratings. The seed is that of the factors with which it begins."""

    def ridge(count: np.ndarray) -> np.ndarray:
        found: np.ndarray = settings.ridge + settings.few / np.maximum(count, 1)
        return found.clip(max=1 / settings.rate).astype("float32")  # above, the first step would go beyond 0

    def graph() -> gridml.Graph:
        start, g = np.random.default_rng(seed), gridml.Graph()
        of_item = ridge(np.bincount(ratings.item, minlength=ratings.items))
        g.add(Shared, mean=ratings.stars.mean(), rate=settings.rate)
        g.add(Item, ridge=of_item, bias=0, moved=1, q=start.normal(0, 0.1, (ratings.items, RANK)))
        rated, p = gridml.csr(ratings.offsets, ratings.item, ratings.stars), start.normal(0, 0.1, (ratings.users, RANK))
        g.add(User, ridge=ridge(np.diff(ratings.offsets)), bias=0, moved=1, p=p, rated=rated)
        return g

    def cool(shared: Shared) -> None:
        shared.rate *= settings.decay

    batch = gridml.MiniBatch([learn], size=SIZE)
    return gridml.Program(graph, [batch, gridml.global_sync(cool)], epochs=epochs)
