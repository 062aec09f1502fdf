"""Graphs in folders: they are written and read by pieces, and every defect is reported."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, save_npz

from gridml.errors import StorageError, UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.files import source, text_formats
from gridml.placement.files.array_formats import write
from gridml.placement.files.registry import read, store
from tests.support.graphs import grouped


def same(one: Bipartite, other: Bipartite) -> bool:
    return (
        np.array_equal(one.offsets, other.offsets)
        and np.array_equal(one.neighbours, other.neighbours)
        and one.columns == other.columns
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "graph.csr", [grouped(20, 30, 4)])
    return tmp_path / "graph.csr"


def test_numpy_reads_what_is_written(folder: Path) -> None:
    graph = grouped(20, 30, 4)
    assert np.load(folder / "indptr.npy").tolist() == graph.offsets.tolist()
    assert np.load(folder / "indices.npy").tolist() == graph.neighbours.tolist()
    assert np.load(folder / "shape.npy").tolist() == [20, 30]


def test_an_unzipped_npz_of_scipys(tmp_path: Path) -> None:
    graph = grouped(50, 30, 4)
    matrix = csr_array((np.ones(graph.edges), graph.neighbours, graph.offsets.astype(np.int32)), shape=(50, 30))
    save_npz(tmp_path / "matrix.npz", matrix)
    zipfile.ZipFile(tmp_path / "matrix.npz").extractall(tmp_path / "unzipped")
    assert read(tmp_path / "unzipped").mapped and same(read(tmp_path / "unzipped"), graph)
    save_npz(tmp_path / "other.npz", matrix.tocsc())
    zipfile.ZipFile(tmp_path / "other.npz").extractall(tmp_path / "columns")
    with pytest.raises(UsageError, match=r"has the format 'csc'; expected csr, a matrix by rows"):
        read(tmp_path / "columns")


def test_libsvm_is_stored_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, file = grouped(400, 300, 6), tmp_path / "rows.svm.gz"
    rows = np.split(graph.neighbours, graph.offsets[1:-1])
    lines = ["1 " + " ".join(f"{column + 1}:1" for column in [*row[::-1], row[0]]) for row in rows]
    file.write_bytes(gzip.compress("\n".join(["# a comment", *lines, ""]).encode()))
    monkeypatch.setattr(source, "BLOCK", 3000)
    monkeypatch.setattr(source, "PIECE", 500)
    pieces = list(text_formats.pieces(source.GraphSource(file)))
    assert len(pieces) > 3 and max(piece.edges for piece in pieces) < 1000
    store(file, tmp_path / "rows.csr")
    assert same(read(tmp_path / "rows.csr"), read(file)) and same(read(file), graph)


def test_other_formats_are_stored_too(tmp_path: Path) -> None:
    (tmp_path / "graph.edges").write_text("5 7\n5 9\n8 7\n")
    store(tmp_path / "graph.edges", tmp_path / "stored")
    assert same(read(tmp_path / "stored"), read(tmp_path / "graph.edges"))


def test_what_is_there_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "graph.edges").write_text("5 7\n")
    with pytest.raises(UsageError, match=r"graph.csr exists already; expected a new name"):
        store(tmp_path / "graph.edges", folder)


def test_a_file_that_is_wrong_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 3:1\n1 x\n")
    with pytest.raises(UsageError, match="line 2"):
        store(tmp_path / "rows.svm", tmp_path / "rows.csr")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.svm"]
    (tmp_path / "good.svm").write_text("1 3:1\n")
    with pytest.raises(StorageError, match="cannot be written"):
        store(tmp_path / "good.svm", tmp_path / "good.svm" / "below")


@pytest.mark.parametrize(
    ("name", "holds", "said"),
    [
        ("indptr.npy", np.arange(20), "indptr.npy has 20 numbers; expected one more than rows"),
        ("indptr.npy", np.arange(21), "must ascend from 0 to the [0-9]+ numbers"),
        ("indptr.npy", np.arange(21.0), "indptr.npy float64; expected int32 and int64"),
        ("indices.npy", np.arange(80), "indices.npy is int64, indptr.npy int64; expected int32"),
        ("shape.npy", np.array([20]), "shape.npy has two"),
        ("shape.npy", np.array([20, 2**31]), "has 20 rows and 2,147,483,648 columns; expected at most"),
    ],
)
def test_what_does_not_fit(folder: Path, name: str, holds: np.ndarray, said: str) -> None:  # type: ignore[type-arg]
    np.save(folder / name, holds)
    with pytest.raises(UsageError, match=said):
        read(folder)


def test_what_is_missing_or_damaged(folder: Path) -> None:
    whole = (folder / "indices.npy").read_bytes()
    for damaged in (whole[:200], whole[:5], b""):
        (folder / "indices.npy").write_bytes(damaged)
        with pytest.raises(UsageError, match=r"graph.csr: indices.npy is damaged"):
            read(folder)
    (folder / "indices.npy").unlink()
    with pytest.raises(UsageError, match=r"indices.npy cannot be read: No such file.*gridml place GRAPH --store"):
        read(folder)
