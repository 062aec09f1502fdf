"""Ratings for the benchmarks of matrix factorisation: drawn from hidden factors, as many as MovieLens-10M has, and
MovieLens-100k.

Users and items have a bias and hidden factors; a few items have most ratings; a rating is rounded to half a star from
0.5 to 5. So a model can find the factors, and noise keeps it from being perfect.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.datasets import movielens

Array = NDArray[Any]


class Kind(NamedTuple):
    """What ratings are drawn from."""

    hidden: int = 12  #: the rank of the factors
    noise: float = 0.7  #: stars
    skew: float = 2.5  #: 1: all items have as many ratings; more: a few have most


class Ratings(NamedTuple):
    """Ratings sorted by user, of which a tenth is held out."""

    users: int
    items: int
    offsets: Array  #: int64 (users+1,) borders of the users' ratings in `item` and `stars`
    item: Array  #: int32 (n,)
    stars: Array  #: float32 (n,)
    test_user: Array  #: int32 (m,)
    test_item: Array  #: int32 (m,)
    test_stars: Array  #: float32 (m,)

    def rmse(self, guess: Array) -> float:
        """The error of a guess for each rating that was held out."""
        return float(np.sqrt(np.square(guess.clip(0.5, 5) - self.test_stars).mean()))


def drawn(users: int, items: int, count: int, seed: int = 0, kind: Kind = Kind()) -> Ratings:  # noqa: B008
    """Draw `count` ratings, which may repeat a pair of user and item."""
    rng = np.random.default_rng(seed)
    often = rng.lognormal(0, 1, users)
    user = np.sort(rng.choice(users, count, p=often / often.sum())).astype(np.int32)
    item = (items * rng.random(count) ** kind.skew).astype(np.int32)
    p, q = (rng.normal(0, 0.4, (n, kind.hidden)).astype(np.float32) for n in (users, items))
    bias, bias_of = rng.normal(0, 0.35, users).astype(np.float32), rng.normal(0, 0.35, items).astype(np.float32)
    stars = np.empty(count, np.float32)
    for start in range(0, count, 1 << 20):  # in parts, so that the factors of all ratings never stand beside each other
        at = slice(start, start + (1 << 20))
        u, i = user[at], item[at]
        stars[at] = 3.5 + bias[u] + bias_of[i] + np.einsum("nk,nk->n", p[u], q[i])
    stars += rng.normal(0, kind.noise, count).astype(np.float32)
    stars = (np.round(2 * stars) / 2).clip(0.5, 5)
    return _split(users, items, user, item, stars, rng.random(count) < 0.1)


def of_movielens(seed: int) -> Ratings:
    """Return MovieLens-100k, of which the seed says what is held out. Raises DataError if it cannot be had."""
    given = movielens()
    order = np.argsort(given.user, kind="stable")
    held_out = np.random.default_rng(seed).random(len(order)) < 0.1
    user, item = (each[order].astype(np.int32) for each in (given.user, given.item))
    return _split(given.users, given.items, user, item, given.stars[order], held_out)


def _split(users: int, items: int, user: Array, item: Array, stars: Array, held_out: Array) -> Ratings:
    """Hold some ratings out. They are sorted by user."""
    offsets = np.searchsorted(user[~held_out], np.arange(users + 1)).astype(np.int64)
    return Ratings(
        users, items, offsets, item[~held_out], stars[~held_out], user[held_out], item[held_out], stars[held_out]
    )
