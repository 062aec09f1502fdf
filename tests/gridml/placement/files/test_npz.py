"""Files of scipy.sparse.save_npz, and files of only the three arrays."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, coo_matrix, save_npz

from gridml.errors import UsageError
from gridml.placement.files.registry import read

ENTRIES = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 5)), min_size=1)
ONE = {"indptr": np.array([0, 1, 2]), "indices": np.array([0, 2]), "shape": np.array([2, 3])}


@given(ENTRIES, st.sampled_from(["csr", "csc", "coo"]), st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    edges_of: Callable[..., set[tuple[int, int]]],
    entries: set[tuple[int, int]],
    form: str,
    old: bool,
) -> None:
    file = tmp_path_factory.mktemp("npz") / "a.npz"
    places = tuple(np.array(sorted(entries)).T)
    matrix = (coo_matrix if old else coo_array)((np.ones(len(entries)), places), shape=(9, 6))
    save_npz(file, matrix.asformat(form))
    graph = read(file)
    assert edges_of(graph) == entries and (graph.rows, graph.columns) == (9, 6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_the_arrays_alone_are_rows(tmp_path: Path, edges_of: Callable[..., set[tuple[int, int]]], dtype: str) -> None:
    np.savez(tmp_path / "a.npz", **{name: array.astype(dtype) for name, array in ONE.items()})
    graph = read(tmp_path / "a.npz")
    assert edges_of(graph) == {(0, 0), (1, 2)} and (graph.rows, graph.columns) == (2, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"indices": None}, "holds indptr, shape; expected indices, too"),
        ({"format": np.array(b"bsr")}, "has the format 'bsr'; expected csr, csc or coo"),
        ({"format": np.array("coo")}, "expected row, too"),
        ({"shape": np.array([2, 3, 4])}, "shape has 3 numbers; expected 2"),
        ({"shape": np.array([5, 3])}, "indptr has 3 numbers; expected 6"),
        ({"indices": np.array([0, 3])}, "row 1 touches column 3; expected one of 0 to 2"),
        ({"indices": np.array([0, -3])}, "row 1 touches column -3"),
        ({"indices": np.array([0.0, 1.0])}, "indices is float64 (2,); expected one row of whole numbers"),
        ({"indices": np.array([[0, 1]])}, "indices is int64 (1, 2)"),
        ({"indptr": np.array([0, 1, 5])}, "offsets must go from 0 to the 2 neighbours"),
        ({"indptr": np.array([0, 3, 2], np.uint64)}, "offsets must ascend"),
        ({"indices": np.array([0, None], object)}, "is damaged: Object arrays cannot be loaded"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, **{name: array for name, array in {**ONE, **changes}.items() if array is not None})
    with pytest.raises(UsageError) as raised:
        read(file)
    assert str(raised.value).startswith(f"{file}: ") and says in str(raised.value)


def test_damage_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, **{**ONE, "indices": np.arange(2)})
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[60] ^= 0xFF
    for content, says in (
        (b"", "is no .npz, or the end of it is missing"),
        (b"1 2\n", "is no .npz"),
        (whole[:-30], "is no .npz, or the end of it is missing"),
        (bytes(changed), "is damaged: "),
    ):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=says):
            read(file)
    np.save(tmp_path / "b.npy", np.arange(3))
    with pytest.raises(UsageError, match=r"is no \.npz"):
        read(tmp_path / "b.npy", "npz")
    with pytest.raises(UsageError, match="cannot be read: No such file or directory"):
        read(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("local", "central", "value", "says"),
    [(6, 8, 1, "password required"), (8, 10, 99, "compressed by method 99"), (4, 6, 99, "zip file version 9.9")],
)
def test_a_zip_that_numpy_did_not_write_is_refused(
    tmp_path: Path, local: int, central: int, value: int, says: str
) -> None:
    """Regression: zipfile raises RuntimeError and NotImplementedError for these bytes of its headers."""
    np.savez_compressed(tmp_path / "a.npz", **ONE)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    for signature, at in ((b"PK\3\4", local), (b"PK\1\2", central)):
        found = -1
        while (found := content.find(signature, found + 1)) >= 0:
            content[found + at] = value
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UsageError, match=f"is damaged: .*{says}"):
        read(tmp_path / "a.npz")


def test_a_packed_one_and_a_pipe_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ONE)
    file = tmp_path / "a.npz.gz"
    file.write_bytes(gzip.compress((tmp_path / "a.npz").read_bytes()))
    with pytest.raises(
        UsageError, match=f"is compressed by gzip; expected a plain .npz. Decompress it: gzip -d {file}"
    ):
        read(file)
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(UsageError, match=r"is a pipe; expected a file, because a \.npz is read from its end"):
        read(Path(f"/dev/fd/{reading}"), "npz")
    os.close(reading)
