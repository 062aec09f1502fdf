"""The graphs of `benchmarks.placement`: real ones from the folder that GRIDML_DATA names, and synthetic ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from gridml.placement.bipartite import Bipartite
from gridml.placement.files.registry import read
from tests.support.graphs import grid

FILES = {
    "20news": "text/20news/20news_train.svm.gz",
    "imdb words": "text/imdb_train.svm.gz",
    "imdb bigrams": "text/imdb_train_bigram.svm.gz",
    "gowalla": "recsys/gowalla-train.tsv.gz",
    "msweb": "recsys/msweb.tsv.gz",
    "facebook": "snap/facebook-combined.edges.gz",
    "email-enron": "snap/email-enron.edges.gz",
    "as-caida": "snap/as-caida20071105.edges.gz",
    "ca-condmat": "snap/ca-condmat-cc1.edges.gz",
    "slashdot": "snap/soc-slashdot0902-directed.edges.gz",
    "ibm01": "hgr/ISPD98_ibm01.hgr.gz",
    "powersim": "hgr/powersim.mtx.hgr.gz",
}


def names() -> list[str]:
    """Return the names of the available graphs, the smaller ones first."""
    data = os.environ.get("GRIDML_DATA")
    real = [name for name, file in FILES.items() if data is not None and (Path(data) / file).is_file()]
    return [*SYNTHETIC, *real]


def graph(name: str) -> Bipartite:
    """Return a graph by name."""
    if name in SYNTHETIC:
        return SYNTHETIC[name]()
    return read(Path(os.environ["GRIDML_DATA"]) / FILES[name])


def uniform(degree: int, count: int = 10_000) -> Bipartite:
    """Return a graph with as many rows as columns and uniformly random edges, like those of Duan, Wang and Wu."""
    rng = np.random.default_rng(degree)
    edges = rng.integers(0, count, (2, count * degree))
    return _compact(edges[0], edges[1], count, count)


def clicks(rows: int, topics: int, seed: int) -> Bipartite:
    """Return rows like impressions of advertisements, of people with habits and one or two topics each.

    Of a row's features (43 on average, log-normal) 15% are common ones, by a power law, 40% of a topic of its person,
    40% the person's own, and 5% uniformly random.
    """
    rng, columns = np.random.default_rng(seed), 4 * rows
    common, of_topics = columns // 50, int(columns * 0.28)
    people = rows // 10
    active = _power(people, 20.0, 0.6)
    person = rng.choice(people, rows, p=active)
    liked = _power(topics, 5.0, 0.8)
    first = rng.choice(topics, people, p=liked)
    second = np.where(rng.random(people) < 0.2, rng.choice(topics, people, p=liked), first)
    topic_size = np.maximum(50, (liked * of_topics).astype(np.int64))
    topic_at = common + np.cumsum(topic_size) - topic_size
    own_size = np.maximum(1, (active**0.7 / (active**0.7).sum() * (columns - common - of_topics)).astype(np.int64))
    own_at = common + of_topics + np.cumsum(own_size) - own_size
    degree = np.maximum(3, rng.lognormal(np.log(53.8) - 0.18, 0.6, rows)).astype(np.int64)
    row = np.repeat(np.arange(rows), degree)
    who, kind, place = person[row], rng.random(len(row)), rng.random(len(row))
    column = rng.integers(0, columns, len(row))
    shared = kind < 0.15
    column[shared] = np.minimum((common ** place[shared]).astype(np.int64) - 1, common - 1)
    topical = (kind >= 0.15) & (kind < 0.55)
    topic = np.where(rng.random(topical.sum()) < 0.5, first[who[topical]], second[who[topical]])
    column[topical] = topic_at[topic] + (topic_size[topic] ** place[topical]).astype(np.int64) - 1
    own = (kind >= 0.55) & (kind < 0.95)
    column[own] = own_at[who[own]] + (place[own] ** 1.5 * own_size[who[own]]).astype(np.int64)
    return _compact(row, rng.permutation(columns)[np.minimum(column, columns - 1)], rows, columns)


def points(count: int, near: float) -> Bipartite:
    """Return random points of a unit square; a row touches its own point and those nearer than `near`."""
    pairs = cKDTree(np.random.default_rng(0).random((count, 2))).query_pairs(near, output_type="ndarray")
    each = np.arange(count)
    rows, columns = (np.concatenate([each, pairs[:, end], pairs[:, 1 - end]]) for end in (0, 1))
    return Bipartite.from_edges(rows, columns, (count, count))


def ratings(rows: int, seed: int) -> Bipartite:
    """Return rows like ratings, of a person and an item each. A person has one of forty tastes; nine in ten of their
    ratings are of items of that taste, by a power law."""
    rng, people, items = np.random.default_rng(seed), rows // 10, rows // 100
    taste = rng.integers(0, 40, people)
    person = rng.integers(0, people, rows)
    own = taste[person] * items // 40 + ((items // 40) ** rng.random(rows)).astype(np.int64) - 1
    item = np.where(rng.random(rows) < 0.9, own, rng.integers(0, items, rows))
    return Bipartite.from_edges(
        np.repeat(np.arange(rows), 2), np.stack([person, people + item], 1).ravel(), (rows, people + items)
    )


def _power(count: int, offset: float, exponent: float) -> NDArray[np.float64]:
    weight = (np.arange(count) + offset) ** -exponent
    return np.asarray(weight / weight.sum(), np.float64)


def _compact(rows: NDArray[np.int64], columns: NDArray[np.int64], n: int, m: int) -> Bipartite:
    """Return the graph of these edges, without the columns that no row touches."""
    used = np.zeros(m, np.bool_)
    used[columns] = True
    return Bipartite.from_edges(rows, (np.cumsum(used) - 1)[columns], (n, int(used.sum())))


SYNTHETIC: dict[str, Callable[[], Bipartite]] = {
    "uniform, degree 10": lambda: uniform(10),
    "uniform, degree 30": lambda: uniform(30),
    "uniform, degree 50": lambda: uniform(50),
    "grid, 200 × 200": lambda: grid(200),
    "points, 20k": lambda: points(20_000, 0.012),
    "ratings, 200k": lambda: ratings(200_000, 1),
    "clicks, 100k rows": lambda: clicks(100_000, 200, 4),
    "clicks, 1M rows": lambda: clicks(1_000_000, 500, 5),
}
