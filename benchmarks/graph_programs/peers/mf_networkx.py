"""Matrix factorisation of MovieLens over a graph of networkx, rating by rating, as examples/mf.py has it."""

from typing import Any

import networkx as nx
import numpy as np

import gridml

RANK, RIDGE, EPOCHS = 32, 0.06, 20


def split() -> tuple[gridml.datasets.Ratings, Any]:
    ratings = gridml.datasets.movielens()
    return ratings, np.random.default_rng(1).random(len(ratings.stars)) < 0.1


def network(user: Any, item: Any, stars: Any, users: int, items: int) -> Any:
    start, rated = np.random.default_rng(0), nx.Graph()
    rated.add_nodes_from((("item", i), {"bias": 0.0, "v": start.normal(0, 0.1, RANK)}) for i in range(items))
    rated.add_nodes_from((("user", u), {"bias": 0.0, "v": start.normal(0, 0.1, RANK)}) for u in range(users))
    for u, i, s in zip(user.tolist(), item.tolist(), stars.tolist(), strict=True):
        rated.add_edge(("user", u), ("item", i), stars=s)
    return rated


def fit(rated: Any, epochs: int = EPOCHS) -> float:
    mean, rate = float(np.mean([stars for *_, stars in rated.edges(data="stars")])), 0.02
    for _ in range(epochs):
        for user, item, stars in rated.edges(data="stars"):
            a, b = rated.nodes[user], rated.nodes[item]
            error = stars - mean - a["bias"] - b["bias"] - a["v"] @ b["v"]
            for one, other in ((a, b["v"]), (b, a["v"].copy())):
                one["bias"] += rate * (error - RIDGE * one["bias"])
                one["v"] = one["v"] + rate * (error * other - RIDGE * one["v"])
        rate *= 0.93
    return mean


def predict(rated: Any, mean: float, user: Any, item: Any) -> Any:
    pairs = [
        (rated.nodes["user", u], rated.nodes["item", i]) for u, i in zip(user.tolist(), item.tolist(), strict=True)
    ]
    return np.array([mean + a["bias"] + b["bias"] + a["v"] @ b["v"] for a, b in pairs])


def main() -> None:
    ratings, held = split()
    rated = network(ratings.user[~held], ratings.item[~held], ratings.stars[~held], ratings.users, ratings.items)
    guess = predict(rated, fit(rated), ratings.user[held], ratings.item[held])
    print({"rmse": float(np.sqrt(np.square(guess.clip(1, 5) - ratings.stars[held]).mean()))})
