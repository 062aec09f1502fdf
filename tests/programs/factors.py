"""Matrix factorisation by compiled stages, of ratings computed from hidden factors. `seen` counts the ratings of a
pass, and `passes` the passes."""

import math

import numpy as np

import gridml

RANK, RIDGE = 8, 0.05
USERS, ITEMS, RATED = 240, 60, 20


class Shared(gridml.Vertex):
    mean = gridml.array("float32")
    rate = gridml.array("float32")
    passes = gridml.array("int64")
    last_seen = gridml.array("int64")
    loss = gridml.accumulator("float64")
    seen = gridml.accumulator("int64")
    worst = gridml.accumulator("float32", by="max")
    aggregate = gridml.owned()


class Item(gridml.Vertex):
    q = gridml.array("float32", (RANK,))
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    p = gridml.array("float32", (RANK,), mutable=True)
    visits = gridml.array("int64", mutable=True)
    rated = gridml.edge(Item, weight="float32")


@gridml.exchange(over=User)
def learn(user: User, item: Item, rating: gridml.Link, at: Shared) -> None:
    error = rating.weight - at.mean
    for f in range(RANK):
        error -= user.p[f] * item.q[f]
    at.loss += error * error
    at.seen += 1
    at.worst = max(at.worst, math.fabs(error))
    for f in range(RANK):
        p, q = user.p[f], item.q[f]
        user.p[f] = p + at.rate * (error * q - RIDGE * p)
        item.q[f] = q + at.rate * (error * p - RIDGE * q)
    user.visits += 1


@gridml.global_sync
def cool(shared: Shared) -> None:
    shared.rate *= 0.95
    shared.passes += 1
    shared.last_seen = shared.seen


def ratings() -> tuple[np.ndarray, np.ndarray]:
    """(item, rating), both of shape (USERS, RATED)."""
    rng = np.random.default_rng(2)
    item = np.array([rng.choice(ITEMS, RATED, replace=False) for _ in range(USERS)])
    users, items = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    return item, 3 + np.einsum("ur,uir->ui", users, items[item]).astype(np.float32)


def graph() -> gridml.Graph:
    item, rating = ratings()
    start, g = np.random.default_rng(0), gridml.Graph()
    g.add(Shared, mean=rating.mean(), rate=0.05, passes=0, last_seen=0)
    g.add(Item, q=start.normal(0, 0.3, (ITEMS, RANK)).astype(np.float32))
    rated = gridml.csr(np.arange(USERS + 1) * RATED, item.ravel(), rating.ravel())
    g.add(User, p=start.normal(0, 0.3, (USERS, RANK)).astype(np.float32), visits=0, rated=rated)
    return g


def evaluate(users: gridml.Batch[User], items: gridml.Batch[Item], shared: Shared) -> dict[str, float]:
    item, rating = ratings()
    guess = shared.mean + np.einsum("ur,uir->ui", users.p, items.q[item])
    return {
        "rmse": float(np.sqrt(np.square(guess - rating).mean())),
        "least_visits": int(users.visits.min()),
        "most_visits": int(users.visits.max()),
        "passes": shared.passes,
        "seen": shared.last_seen,
    }


program = gridml.Program(graph, [gridml.MiniBatch([learn], size=16, exact=True), cool], evaluate, epochs=6)
