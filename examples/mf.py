"""Matrix factorisation of MovieLens: stages, compiled to machine code, go over every rating by stochastic gradient.

Koren et al., "Matrix Factorization Techniques for Recommender Systems", 2009, equation 4. Users are local, and their
factors come home with each push; items are replicated and averaged. docs/mf.md explains it.
"""

import numpy as np

import gridml

RANK, RIDGE, EPOCHS = 32, 0.06, 20


class Shared(gridml.Vertex):  # one vertex, which every stage may take
    mean = gridml.array("float32")
    rate = gridml.array("float32")
    loss = gridml.accumulator("float64")
    aggregate = gridml.owned()


class Item(gridml.Vertex):  # replicated: workers train their mirrors, which are then averaged
    bias = gridml.array("float32")
    q = gridml.array("float32", (RANK,))
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):  # local
    bias = gridml.array("float32", mutable=True)
    p = gridml.array("float32", (RANK,), mutable=True)
    rated = gridml.edge(Item, weight="float32")


@gridml.exchange(over=User)
def learn(user: User, item: Item, rating: gridml.Link, at: Shared) -> None:
    error = rating.weight - at.mean - user.bias - item.bias
    for f in range(RANK):
        error -= user.p[f] * item.q[f]
    at.loss += error * error
    user.bias += at.rate * (error - RIDGE * user.bias)
    item.bias += at.rate * (error - RIDGE * item.bias)
    for f in range(RANK):
        p, q = user.p[f], item.q[f]
        user.p[f] = p + at.rate * (error * q - RIDGE * p)
        item.q[f] = q + at.rate * (error * p - RIDGE * q)


@gridml.global_sync
def cool(shared: Shared) -> None:  # after each pass
    shared.rate *= 0.93


def split() -> tuple[gridml.datasets.Ratings, np.ndarray]:
    """All ratings, and which of them are held out: bool (n,)."""
    ratings = gridml.datasets.movielens()
    return ratings, np.random.default_rng(1).random(len(ratings.stars)) < 0.1


def graph() -> gridml.Graph:
    ratings, held_out = split()
    train = np.flatnonzero(~held_out)
    train = train[np.argsort(ratings.user[train], kind="stable")]
    offsets = np.searchsorted(ratings.user[train], np.arange(ratings.users + 1))
    stars, start, g = ratings.stars[train], np.random.default_rng(0), gridml.Graph()
    g.add(Shared, mean=stars.mean(), rate=0.02)
    g.add(Item, bias=0, q=start.normal(0, 0.1, (ratings.items, RANK)))
    rated = gridml.csr(offsets, ratings.item[train], stars)
    g.add(User, bias=0, p=start.normal(0, 0.1, (ratings.users, RANK)), rated=rated)
    return g


def evaluate(users: gridml.Batch[User], items: gridml.Batch[Item], shared: Shared) -> dict[str, float]:
    """The error on ratings that were held out."""
    ratings, held_out = split()
    user, item, stars = ratings.user[held_out], ratings.item[held_out], ratings.stars[held_out]
    guess = shared.mean + users.bias[user] + items.bias[item] + (users.p[user] * items.q[item]).sum(1)
    return {"rmse": float(np.sqrt(np.square(guess.clip(1, 5) - stars).mean()))}


program = gridml.Program(graph, [gridml.MiniBatch([learn], size=16), cool], evaluate, epochs=EPOCHS)
