"""Matrix factorisation: ratings of MovieLens, with a replicated row for each user and movie, by the gradient of each
rating.

GRIDML_DATA names a folder with `recsys/ml-100k.inter` (in the wheel recbole==1.2.1, recbole/dataset_example/ml-100k).
Every fifth rating is not trained. Koren et al., "Matrix Factorization Techniques for Recommender Systems", 2009,
equation 4.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np

import gridml

RANK, DECAY = 16, 0.05
BATCH, RATE = int(os.environ.get("BATCH", "32")), float(os.environ.get("RATE", "0.02"))
RULE = os.environ.get("RULE", "stale_mean")


class User(gridml.Vertex):
    bias = gridml.array("float32")
    taste = gridml.array("float32", (RANK,))
    aggregate = getattr(gridml, RULE)()


class Movie(gridml.Vertex):
    bias = gridml.array("float32")
    taste = gridml.array("float32", (RANK,))
    aggregate = getattr(gridml, RULE)()


class Rating(gridml.Vertex):
    stars = gridml.array("float32")
    user = gridml.edge(User)
    movie = gridml.edge(Movie)


@gridml.update(batch=BATCH)
def train(ratings: gridml.Batch[Rating], users: gridml.Batch[User], movies: gridml.Batch[Movie]) -> None:
    user, movie = ratings.user.index, ratings.movie.index
    theirs, its = users.taste[user], movies.taste[movie]
    wrong = ratings.stars - users.bias[user] - movies.bias[movie] - (theirs * its).sum(1)
    np.add.at(users.bias, user, RATE * (wrong - DECAY * users.bias[user]))
    np.add.at(movies.bias, movie, RATE * (wrong - DECAY * movies.bias[movie]))
    np.add.at(users.taste, user, RATE * (wrong[:, None] * its - DECAY * theirs))
    np.add.at(movies.taste, movie, RATE * (wrong[:, None] * theirs - DECAY * its))


@cache
def ratings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(user int64 (n,), movie int64 (n,), stars minus 3.5 float32 (n,)) in random order."""
    path = Path(os.environ["GRIDML_DATA"]) / "recsys" / "ml-100k.inter"
    user, movie, stars = np.loadtxt(path, skiprows=1, usecols=(0, 1, 2)).T
    order = np.random.default_rng(1).permutation(len(stars))
    return user[order].astype(np.int64) - 1, movie[order].astype(np.int64) - 1, (stars - 3.5)[order].astype(np.float32)


def tested() -> np.ndarray:
    """Return the held-out ratings, bool (n,)."""
    chosen: np.ndarray = np.arange(len(ratings()[2])) % 5 == 0
    return chosen


def graph() -> gridml.Graph:
    user, movie, stars = (values[~tested()] for values in ratings())
    start = np.random.default_rng(2)
    g = gridml.Graph()
    users, movies = (int(ids.max()) + 1 for ids in ratings()[:2])
    for kind, count in ((User, users), (Movie, movies)):
        taste = start.normal(0, 0.1, (count, RANK)).astype(np.float32)
        g.add(kind, bias=np.zeros(count, np.float32), taste=taste)
    g.add(Rating, stars=stars, user=user, movie=movie)
    return g


def evaluate(users: gridml.Batch[User], movies: gridml.Batch[Movie]) -> dict[str, float]:
    user, movie, stars = (values[tested()] for values in ratings())
    guessed = users.bias[user] + movies.bias[movie] + (users.taste[user] * movies.taste[movie]).sum(1)
    return {"error": float(np.sqrt(np.mean((stars - guessed) ** 2)))}


program = gridml.Program(graph, train, evaluate, epochs=8)
