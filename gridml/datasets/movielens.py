"""MovieLens 100k: 100,000 ratings of 1,682 films by 943 people (Harper and Konstan, ACM TiiS 5:4, 2015).

Its home offers it for research, not to be passed on; the package that a source fetches carries a copy.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.pinned import Arrays, Fetched, Pin, Report, Source, reading
from gridml.datasets.public import MAX_FILE_BYTES, PublicSet

_INSIDE = "recbole/dataset_example/ml-100k/ml-100k.inter"


@dataclass(frozen=True)
class Ratings:
    """Ratings in the order of the file, read-only; people and films count from 0."""

    user: NDArray[np.int64]  #: (n,)
    item: NDArray[np.int64]  #: (n,)
    stars: NDArray[np.float32]  #: (n,) from 1 to 5
    users: int
    items: int


def movielens(
    cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> Ratings:
    """Return the ratings of MovieLens 100k.

    `cache`, `progress` and `sources` are as for `mnist`. Raises DataError if no source has the ratings, StorageError if
    the cache cannot be written.
    """
    (rows,) = RATINGS.obtain(cache, progress, sources)
    user, item = (_constant(rows[:, column].astype(np.int64) - 1) for column in (0, 1))
    return Ratings(user, item, _constant(rows[:, 2].astype(np.float32)), int(user.max()) + 1, int(item.max()) + 1)


def _constant(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values


def read_ratings(folder: Path, report: Report) -> Arrays:
    """Read `ml-100k.inter` of a folder: a line of names, then user, item, stars and time, separated by tabs."""
    with open(folder / "ml-100k.inter", encoding="ascii") as file:
        return {"ml-100k": _table(file.read(MAX_FILE_BYTES))}


def read_wheel(folder: Path, report: Report) -> Arrays:
    """Read the file from the wheel of a package, which is not installed."""
    with zipfile.ZipFile(folder / "recbole.whl") as archive:
        return {"ml-100k": _table(archive.read(_INSIDE).decode("ascii"))}


def _table(text: str) -> NDArray[np.int32]:
    rows = [line.split("\t")[:3] for line in text.splitlines()[1:]]
    return np.array([[int(float(each)) for each in row] for row in rows], np.int32)


_WHEEL = Fetched(
    "recbole.whl", "pip:recbole==1.2.1", "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
)
RATINGS = PublicSet(
    "MovieLens 100k",
    "recsys",
    (Pin("ml-100k", (100_000, 3), "<i4", "360a20f6a6103988bcf221e50b873335450875d7b065b3fa26f3f8a0b34b9ca2"),),
    read_ratings,
    "the file ml-100k.inter of RecBole",
    (Source("the package recbole==1.2.1, fetched by pip", reading(read_wheel, _WHEEL)),),
    ("set pip's index (pip config set global.index-url ADDRESS) to one that can be reached",),
)
