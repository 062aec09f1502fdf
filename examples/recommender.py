"""Matrix factorisation: every user solves for its own factors, and moves the replicated factors of the items it rated.

Error on held-out ratings after ten epochs, seed 0, where the noise alone is 0.1 and predicting the mean gives 2.065: a
plain loop 0.1118; one worker 0.1128; two workers that live for 5 s, with 8 kills, 0.1120. Pushes have 53 bytes per user
with one worker, 87 with two.
"""

import numpy as np

import gridml

USERS, ITEMS, RANK, RATED, HELD_OUT, NOISE = 600, 150, 4, 30, 5, 0.1
RIDGE, RATE = 0.1, 0.05


class Item(gridml.Vertex):  # replicated: one row per item
    factor = gridml.array("float64", (RANK,))
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):  # local: each push brings its factors to the master
    factor = gridml.array("float64", (RANK,), mutable=True)
    rated = gridml.edge(Item, weight="float64")


@gridml.update
def fit(user: User, items: gridml.Batch[Item]) -> None:
    theirs, ratings = items.factor, np.array(user.get_weights())
    mine = np.linalg.solve(theirs.T @ theirs + RIDGE * np.eye(RANK), theirs.T @ ratings)
    user.factor = mine
    items.factor += RATE * np.outer(ratings - theirs @ mine, mine)


def ratings() -> tuple[np.ndarray, np.ndarray]:
    """(item, rating), both of shape (USERS, RATED + HELD_OUT), computed from hidden factors."""
    rng = np.random.default_rng(2)
    items = np.array([rng.choice(ITEMS, RATED + HELD_OUT, replace=False) for _ in range(USERS)])
    users, features = rng.normal(size=(USERS, RANK)), rng.normal(size=(ITEMS, RANK))
    return items, np.einsum("ur,uir->ui", users, features[items]) + NOISE * rng.normal(size=items.shape)


def graph() -> gridml.Graph:
    item, rating = (part[:, :RATED].ravel() for part in ratings())
    g = gridml.Graph()
    g.add(Item, factor=np.random.default_rng(3).normal(size=(ITEMS, RANK)))
    g.add(User, factor=np.zeros((USERS, RANK)), rated=gridml.csr(np.arange(USERS + 1) * RATED, item, rating))
    return g


def evaluate(users: gridml.Batch[User], items: gridml.Batch[Item]) -> dict[str, float]:
    """The error on held-out ratings, and the error of always predicting the mean."""
    item, rating = (part[:, RATED:] for part in ratings())
    predicted = np.einsum("ur,uir->ui", users.factor, items.factor[item])
    return {
        "rmse": np.sqrt(np.square(predicted - rating).mean()),
        "rmse_of_the_mean": rating.std(),
    }


program = gridml.Program(graph, fit, evaluate, epochs=10)
