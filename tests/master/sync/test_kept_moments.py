"""What workers that come new are given of others' second moments, whatever those others brought."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.protocol.compression import bfloat16, from_bfloat16
from master.store.moments_file import MomentsFile
from master.sync.kept_moments import EVERY, FACTOR, KeptMoments, mean_of

KEY, NAME = ("Network", 0), "Network/0/net/weight"
OF = f"exp_avg_sq/{NAME}"
POSITIVE = st.floats(2**-60, 2**60, width=32)


def kept(folder: Path) -> KeptMoments:
    modules = {KEY: SimpleNamespace(tensors={NAME: np.zeros((2, 2), np.float32)})}
    return KeptMoments(cast(Any, SimpleNamespace(state=SimpleNamespace(modules=modules))), MomentsFile(folder))


def squares(*values: float) -> np.ndarray[Any, Any]:
    return bfloat16(np.array(values, np.float32).reshape(2, 2))


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        (f"exp_avg_sq/{NAME}s", squares(1, 1, 1, 1), "nothing that"),
        ("exp_avg_sq/Network/1/net/weight", squares(1, 1, 1, 1), "nothing that"),
        (f"momentum/{NAME}", squares(1, 1, 1, 1), "nothing that"),
        (OF, squares(1, 1, 1, 1).reshape(4), "expected (2, 2)"),
        (OF, squares(1, 1, 1, -1), "no mean of squares"),
        (OF, squares(1, 1, 1, np.nan), "no mean of squares"),
        (f"step/{NAME}", np.array(np.inf, np.float32), "no mean of squares"),
    ],
    ids=["tensor", "vertex", "entry", "shape", "negative", "nan", "count"],
)
def test_what_no_optimiser_of_the_program_has_is_refused(
    tmp_path: Path, name: str, values: np.ndarray[Any, Any], says: str
) -> None:
    problem = kept(tmp_path).check({name: values})
    assert problem is not None
    assert says in problem


def test_the_first_is_asked_and_then_one_in_so_many(tmp_path: Path) -> None:
    moments = kept(tmp_path)
    assert [number for number in range(2 * EVERY + 1) if moments.asks()] == [0, EVERY, 2 * EVERY]


def test_who_comes_new_is_given_the_mean_with_the_last_counters(tmp_path: Path) -> None:
    moments = kept(tmp_path)
    assert moments.of([KEY]) == {}
    for value, step in ((1.0, 10), (2.0, 30)):
        moments.take({OF: squares(value, value, 0, value), f"step/{NAME}": np.array(step, np.float32)})
    given = moments.of([KEY])
    assert from_bfloat16(given[OF]).tolist() == [[1.5, 1.5], [0, 1.5]]
    assert given[f"step/{NAME}"] == 30
    assert moments.of([("Network", 1)]) == {}
    moments.clear()
    assert moments.of([KEY]) == {}


@given(kept=POSITIVE, brought=st.floats(0, 2**100, width=32))
def test_no_worker_moves_what_is_kept_far(kept: float, brought: float) -> None:
    mean = from_bfloat16(mean_of(squares(kept, 0, 0, 0), squares(brought, brought, 0, 0))).reshape(-1)
    start = from_bfloat16(squares(kept, 0, 0, 0))[0, 0]
    assert start * (1 + 1 / FACTOR) / 2 * (1 - 2**-8) <= mean[0] <= start * (1 + FACTOR) / 2 * (1 + 2**-8)
    assert mean[1] == from_bfloat16(squares(brought, 0, 0, 0))[0, 0], "what nobody's gradients reached is no measure"


def test_the_next_master_has_them_unless_their_file_is_torn(tmp_path: Path) -> None:
    kept(tmp_path).take({OF: squares(1, 2, 3, 4)})
    (file,) = tmp_path.iterdir()
    next_one = kept(tmp_path)
    next_one.resume()
    assert from_bfloat16(next_one.of([KEY])[OF]).tolist() == [[1, 2], [3, 4]]
    torn = bytearray(file.read_bytes())
    torn[-8:] = bytes(8)  # what a power cut left of it
    file.write_bytes(torn)
    for change in (lambda: None, lambda: file.write_bytes(b"")):
        change()
        another = kept(tmp_path)
        another.resume()
        assert another.of([KEY]) == {}


def test_moments_of_another_program_are_left_where_they_are(tmp_path: Path) -> None:
    kept(tmp_path).take({OF: squares(1, 2, 3, 4), f"exp_avg_sq/{NAME}2": squares(1, 1, 1, 1)})
    next_one = kept(tmp_path)
    next_one.resume()
    assert [*next_one.of([KEY])] == [OF]


def test_where_no_file_can_be_written_they_are_had_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    moments = kept(tmp_path / "file")
    moments.take({OF: squares(1, 2, 3, 4)})
    assert [*moments.of([KEY])] == [OF]
