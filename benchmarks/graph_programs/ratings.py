"""Ratings for the benchmarks of matrix factorisation: drawn from hidden factors, as many as MovieLens-10M has.

Users and items have a bias and factors of rank 12; a few items have most ratings; a rating is rounded to half a star
from 0.5 to 5. So a model can find the factors, and noise keeps it from being perfect.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HIDDEN = 12


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


def drawn(users: int, items: int, count: int, seed: int = 0) -> Ratings:
    """Draw `count` ratings, which may repeat a pair of user and item."""
    rng = np.random.default_rng(seed)
    often = rng.lognormal(0, 1, users)
    user = np.sort(rng.choice(users, count, p=often / often.sum())).astype(np.int32)
    item = (items * rng.random(count) ** 2.5).astype(np.int32)
    p, q = (rng.normal(0, 0.4, (n, HIDDEN)).astype(np.float32) for n in (users, items))
    bias, bias_of = rng.normal(0, 0.35, users).astype(np.float32), rng.normal(0, 0.35, items).astype(np.float32)
    stars = np.empty(count, np.float32)
    for start in range(0, count, 1 << 20):  # in parts, so that the factors of all ratings never stand beside each other
        at = slice(start, start + (1 << 20))
        u, i = user[at], item[at]
        stars[at] = 3.5 + bias[u] + bias_of[i] + np.einsum("nk,nk->n", p[u], q[i])
    stars += rng.normal(0, 0.7, count).astype(np.float32)
    stars = (np.round(2 * stars) / 2).clip(0.5, 5)
    held_out = rng.random(count) < 0.1
    offsets = np.searchsorted(user[~held_out], np.arange(users + 1)).astype(np.int64)
    return Ratings(
        users, items, offsets, item[~held_out], stars[~held_out], user[held_out], item[held_out], stars[held_out]
    )
