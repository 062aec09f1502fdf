"""Bipartite graphs with a known quality of their best placement, most of them random."""

from __future__ import annotations

import numpy as np

from gridml.placement.bipartite import Bipartite


def grouped(rows: int, columns: int, degree: int, *, groups: int = 4, seed: int = 0) -> Bipartite:
    """Return a graph of shuffled groups of rows. Nine in ten of a row's `degree` edges lead to columns of its group,
    the others anywhere; some edges may coincide."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, rows)
    own = (group[:, None] * columns + rng.integers(0, columns, (rows, degree))) // groups
    to = np.where(rng.random((rows, degree)) < 0.9, own, rng.integers(0, columns, (rows, degree)))
    return Bipartite.from_edges(np.repeat(np.arange(rows), degree), to.ravel(), (rows, columns))


def uneven(rows: int, columns: int, *, seed: int = 0) -> Bipartite:
    """Return a graph of three groups of rows with columns of their own, whose rows touch about 4, 12 and 36 of them."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, rows)
    row = np.repeat(np.arange(rows), 4 * 3**group)
    column = (group[row] * columns + rng.integers(0, columns, len(row))) // 3
    return Bipartite.from_edges(row, column, (rows, columns))


def grid(side: int) -> Bipartite:
    """Return a graph whose rows and columns are the points of a square; a row touches its point and the neighbours."""
    at = np.arange(side * side).reshape(side, side)
    ends = [(at, at), (at[1:], at[:-1]), (at[:-1], at[1:]), (at[:, 1:], at[:, :-1]), (at[:, :-1], at[:, 1:])]
    rows, columns = (np.concatenate([each[end].ravel() for each in ends]) for end in (0, 1))
    return Bipartite.from_edges(rows, columns)
