"""Columns that workers read themselves: a chunk names file and rows, f reads them batch by batch, and a missing or
changed file is detected before f runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.format import open_memmap

import gridml
from gridml.engine.engine import Engine
from gridml.engine.update_runner import BatchFailed
from gridml.errors import ProgramError
from gridml.model import shared
from gridml.model.chunk import Chunk, bytes_each, cut
from gridml.model.shared import SharedFileError, shared_column

ROWS = 500


class Total(gridml.Vertex):
    value = gridml.array("float64", (3,))
    aggregate = gridml.add()


class Row(gridml.Vertex):
    values = gridml.array("float32", (3,), shared=True)
    weight = gridml.array("int16", shared=True)
    label = gridml.array("int64")
    total = gridml.edge(Total)


@pytest.fixture(autouse=True)
def unopened() -> None:
    shared._OPEN.clear()


def column(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = open_memmap(path, "w+", dtype, shape)
    values[:] = np.arange(values.size).reshape(shape)
    values.flush()
    return np.load(path, mmap_mode="r")


def graph(folder: Path, rows: slice = slice(None)) -> gridml.Graph:
    g = gridml.Graph()
    total = g.add(Total, value=np.zeros((1, 3)))
    values = column(folder / "values.npy", np.float32, (ROWS, 3))[rows]
    weight = column(folder / "weight.npy", np.int16, (ROWS,))[rows]
    g.add(Row, values=values, weight=weight, label=np.arange(len(values)), total=total)
    return g


def sums(g: gridml.Graph, vertices: np.ndarray, batch: int | None = 7) -> np.ndarray:
    """Return the result of f on the weighted rows of a chunk that was encoded and decoded."""
    made = np.zeros(3)

    def train(rows: gridml.Batch[Row], total: Total) -> None:
        made[:] += (rows.values * rows.weight[:, None]).sum(0, dtype=float)
        assert rows.values is rows.values  # read once
        assert not rows.values.flags.writeable

    def train_one(row: Row, total: Total) -> None:
        made[:] += row.values.astype(float) * row.weight

    f = gridml.update(train_one) if batch is None else gridml.update(batch=batch)(train)
    engine = Engine(gridml.Program(lambda: g, f))
    engine.begin(Chunk.decode(cut(g, "Row", vertices, None, None, bsp=False).encode()))
    for start in range(0, len(vertices), batch or len(vertices)):
        engine.train(start, min(start + (batch or len(vertices)), len(vertices)), 1.0)
    return made


@pytest.mark.parametrize("batch", [7, None], ids=["batch", "one by one"])
def test_f_reads_the_rows_of_its_chunk(tmp_path: Path, batch: int | None) -> None:
    vertices = np.random.default_rng(0).permutation(ROWS)[:100]
    values = np.arange(ROWS * 3, dtype=float).reshape(ROWS, 3)
    np.testing.assert_array_equal(
        sums(graph(tmp_path), vertices, batch), (values * np.arange(ROWS)[:, None])[vertices].sum(0)
    )


def test_a_chunk_carries_no_values_of_a_file(tmp_path: Path) -> None:
    g = graph(tmp_path)
    payload = cut(g, "Row", np.arange(ROWS), None, None, bsp=False).encode()
    assert len(payload) < ROWS * (4 + 8 + 4) + 2000  # ids, labels, edges; the rows have 14 bytes more each
    assert bytes_each(g, "Row") <= 4 + 8 + 4


def test_a_part_of_a_file_is_found(tmp_path: Path) -> None:
    g = graph(tmp_path, slice(100, 200))
    assert g.tables["Row"].shared["values"].opened()[0].tolist() == [300, 301, 302]
    np.testing.assert_array_equal(sums(g, np.array([0])), np.arange(300, 303) * 100)


def test_a_file_in_the_worker_s_own_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = graph(tmp_path)
    (tmp_path / "job").mkdir()
    for name in ("values.npy", "weight.npy"):
        (tmp_path / name).rename(tmp_path / "job" / name)
    monkeypatch.chdir(tmp_path / "job")
    assert sums(g, np.array([1])).tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, expected"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1"), "holds other rows than the master's"),
    ],
    ids=["missing", "cut", "changed"],
)
def test_another_file_is_found_before_f_runs(tmp_path: Path, damage: Any, message: str) -> None:
    g = graph(tmp_path)
    path = tmp_path / "values.npy"
    kept = path.read_bytes()
    path.rename(tmp_path / "kept.npy")
    path.write_bytes(kept)  # another inode: the graph's mapping stays
    damage(path)
    with pytest.raises(SharedFileError, match=message):
        sums(g, np.array([1]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda folder: np.zeros((ROWS, 3), np.float32), "Row.values is shared and got ndarray in memory"),
        (lambda folder: column(folder / "wide.npy", np.float32, (ROWS, 4))[:, :3], "in pieces"),
        (lambda folder: column(folder / "twice.npy", np.float32, (2 * ROWS, 3))[::2], "in pieces"),
        (lambda folder: column(folder / "long.npy", np.float64, (ROWS, 3)), "float64; declared is float32"),
    ],
    ids=["memory", "columns", "every second", "dtype"],
)
def test_what_workers_could_not_read_is_refused(tmp_path: Path, values: Any, message: str) -> None:
    g = gridml.Graph()
    weight = column(tmp_path / "weight.npy", np.int16, (ROWS,))
    with pytest.raises(ProgramError, match=message):
        g.add(Row, values=values(tmp_path), weight=weight, label=np.zeros(ROWS, int), total=np.zeros(ROWS, int))


def test_shared_fields_are_neither_mutable_nor_replicated_nor_added_twice(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="mutable=True and shared=True"):
        gridml.array("int8", mutable=True, shared=True)

    class Word(gridml.Vertex):
        vector = gridml.array("int8", shared=True)
        aggregate = gridml.add()

    with pytest.raises(ProgramError, match=r"Word.vector is shared=True, and the type is replicated"):
        gridml.Graph().add(Word, vector=np.zeros(1, np.int8))
    g = graph(tmp_path)
    again = {name: g.tables["Row"].columns[name] for name in ("values", "weight", "label")}
    with pytest.raises(ProgramError, match="added a second time"):
        g.add(Row, **again, total=np.zeros(ROWS, int))


def test_f_does_not_write_them(tmp_path: Path) -> None:
    def train(rows: gridml.Batch[Row], total: Total) -> None:
        rows.values = 0

    g = graph(tmp_path)
    engine = Engine(gridml.Program(lambda: g, gridml.update(batch=7)(train)))
    engine.begin(cut(g, "Row", np.arange(7), None, None, bsp=False))
    with pytest.raises(BatchFailed) as caught:
        engine.train(0, 7, 1.0)
    assert "read-only here" in str(caught.value.__cause__)


def _cut(path: Path) -> None:
    os.truncate(path, 128)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\1" * 6_128)
    os.utime(path, (1, 1))  # a coarse clock would not show the change at once


WRITTEN = {
    "cut": (_cut, "values.npy: it has 128 bytes, expected 6,128"),
    "other rows": (_overwrite, "values.npy: it holds other rows"),
}


@pytest.mark.parametrize("batch", [7, None], ids=["batch", "one by one"])
@pytest.mark.parametrize(("write", "message"), WRITTEN.values(), ids=WRITTEN)
def test_a_file_that_is_written_to_while_it_is_mapped_is_an_error_and_no_signal(
    tmp_path: Path, write: Any, message: str, batch: int | None
) -> None:
    def train(rows: gridml.Batch[Row], total: Total) -> None:
        total.value += rows.values.sum(0)

    def train_one(row: Row, total: Total) -> None:
        total.value += row.values

    g = graph(tmp_path)
    f = gridml.update(train_one) if batch is None else gridml.update(batch=batch)(train)
    engine = Engine(gridml.Program(lambda: g, f))
    engine.begin(Chunk.decode(cut(g, "Row", np.arange(ROWS), None, None, bsp=False).encode()))
    engine.train(0, 7, 1.0)
    write(tmp_path / "values.npy")
    with pytest.raises(BatchFailed) as caught:
        engine.train(490, 497, 1.0)
    assert isinstance(caught.value.__cause__, SharedFileError)
    assert message in str(caught.value.__cause__) and "write a new one next to it" in str(caught.value.__cause__)


def test_a_file_that_is_touched_or_replaced_by_the_same_is_read_on(tmp_path: Path) -> None:
    g = graph(tmp_path)
    place, path = g.tables["Row"].shared["values"], tmp_path / "values.npy"
    first = place.opened()
    os.utime(path, (1, 1))
    assert place.opened() is not first and place.opened() is place.opened()
    path.unlink()  # mapped content stays
    assert place.take(np.array([1])).tolist() == [[3, 4, 5]]


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_OPEN_FILES", 2)
    places = [shared_column("a", column(tmp_path / f"{i}.npy", np.int8, (9,))) for i in range(5)]
    before = len(os.listdir("/proc/self/fd"))
    assert [int(place.take(3)) for place in places] == [3] * 5
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 2  # a mapping has one of its own


def test_the_place_of_a_view_of_a_view_is_right(tmp_path: Path) -> None:
    values = column(tmp_path / "values.npy", np.int32, (10, 2))
    place = shared_column("a", values[2:][3:])
    assert place.opened().tolist() == values[5:].tolist()
