"""Results as tables by the vertices' own ids, and as files: what is written is read back without a difference."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.api import tables
from gridml.errors import UsageError
from tests.support.effort import examples

PROGRAMS = Path(__file__).parents[2] / "programs"
NAMES = ["b", 'ä, "x"\nnew', "=1+1"]
FOUND = {
    "Page.rank": np.array([0.1, np.inf, np.nan]),
    "Page.half": np.array([0.1, -2.5, 3e-7], np.float32),
    "Page.seen": np.array([True, False, True]),
    "Page.count": np.array([2**63 - 1, -(2**63), 0]),
    "Page.file": np.arange(18, dtype=np.int16).reshape(3, 2, 3),  # a name that numpy.savez takes for itself
    "Page.ids": np.array(NAMES),
    "Shared.moved": np.zeros(1),
    "Page.links.topic": np.arange(5, dtype=np.int32),
    "Network.model": {"weight": np.ones(2)},
}
STEPS = '''"""How far every page is from the first one."""

import numpy as np

import gridml

NAMES = {names}


class Shared(gridml.Vertex):
    changed = gridml.accumulator("int64")
    aggregate = gridml.owned()


class Page(gridml.Vertex):
    steps = gridml.array("int64", mutable=True)
    nearest = gridml.accumulator("int64", by="min")
    links = gridml.edge("Page")


@gridml.exchange(over=Page)
def reach(page: Page, linked: Page) -> None:
    linked.nearest = min(linked.nearest, page.steps + 1)


@gridml.apply(Page)
def settle(page: Page, at: Shared) -> None:
    if page.nearest < page.steps:
        page.steps = page.nearest
        at.changed += 1


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.changed == 0)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Shared)
    links = gridml.edge_list([0, 0, 1, 2], [1, 2, 3, 3], 4)
    g.add(Page, ids=NAMES, steps=np.array([0, 99, 99, 99]), links=links)
    return g


program = gridml.Program(graph, [gridml.MiniBatch([reach, settle, enough])], epochs=9)
'''


def columns(found: Mapping[str, Any] = FOUND) -> dict[str, NDArray[Any]]:
    return gridml.table(found, "Page")


def read_text(path: Path, delimiter: str) -> tuple[list[str], list[list[str]]]:
    with open(path, encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file, delimiter=delimiter)
    return head, rows


def test_a_table_begins_with_ids_and_leaves_out_edges_and_modules() -> None:
    page = columns()
    assert [*page] == ["ids", "rank", "half", "seen", "count", "file"]
    assert page["ids"].tolist() == NAMES and page["file"].shape == (3, 2, 3)
    assert [*gridml.table(FOUND, "Page.links")] == ["topic"]
    assert gridml.table(FOUND, "Shared")["ids"].tolist() == [0]  # without own ids: numbers


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_text_has_a_column_for_each_element_and_exact_numbers(tmp_path: Path, suffix: str, delimiter: str) -> None:
    path = tmp_path / f"pages{suffix}"
    gridml.export(FOUND, path, "Page")
    head, rows = read_text(path, delimiter)
    assert head[:7] == ["ids", "rank", "half", "seen", "count", "file.0.0", "file.0.1"] and head[-1] == "file.1.2"
    assert [row[0] for row in rows] == NAMES
    assert [row[1] for row in rows] == ["0.1", "inf", "nan"]
    assert [row[2] for row in rows] == ["0.1", "-2.5", "3e-07"]  # and not 0.10000000149011612
    assert [row[3] for row in rows] == ["True", "False", "True"]
    assert [int(row[4]) for row in rows] == FOUND["Page.count"].tolist()
    assert np.array([row[5:] for row in rows], int).reshape(3, 2, 3).tolist() == FOUND["Page.file"].tolist()


def test_npz_has_the_columns(tmp_path: Path) -> None:
    gridml.export(FOUND, tmp_path / "pages.npz", "Page")
    with np.load(tmp_path / "pages.npz", allow_pickle=False) as read:
        for name, values in columns().items():
            np.testing.assert_array_equal(read[name], values)
            assert read[name].dtype == values.dtype


def test_parquet_has_the_columns_in_their_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    gridml.export(FOUND, tmp_path / "pages.parquet", "Page")
    read = parquet.read_table(tmp_path / "pages.parquet")
    kinds = [str(each) for each in read.schema.types]
    assert kinds[:5] == ["string", "double", "float", "bool", "int64"]
    assert str(read.schema.types[5]).startswith("fixed_size_list") and read.column_names == [*columns()]
    for name, values in columns().items():
        np.testing.assert_array_equal(np.array(read[name].to_pylist(), values.dtype), values)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
@pytest.mark.parametrize("rows", [0, 1, 99, 100, 101, 350])
def test_files_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, rows: int) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "MAX_PIECE_ROWS", 100)
    path = tmp_path / f"pages{suffix}"
    gridml.export({"Page.q": np.arange(2.0 * rows).reshape(rows, 2)}, path, "Page")
    if suffix == ".parquet":
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        assert file.metadata.num_rows == rows and file.metadata.num_row_groups <= max(1, -(-rows // 100))
        first = file.read()["q"].to_pylist()
    elif suffix == ".npz":
        first = np.load(path)["q"].tolist()
    else:
        first = [[float(cell) for cell in row[1:]] for row in read_text(path, ",")[1]]
    assert first == np.arange(2.0 * rows).reshape(rows, 2).tolist()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=20),
    st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")), max_size=20),
)
def test_any_float_and_any_text_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, numbers: Any, texts: Any
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.csv"
    values = np.array(numbers, np.float32)
    ids = np.array([f"{i} {texts[i] if i < len(texts) else ''}." for i in range(len(values))])
    gridml.export({"Page.x": values, "Page.y": values.astype(float), "Page.ids": ids}, path, "Page")
    _, rows = read_text(path, ",")
    assert [row[0] for row in rows] == ids.tolist()
    np.testing.assert_array_equal(np.array([row[1] for row in rows], np.float32), values)
    np.testing.assert_array_equal(np.array([float(row[2]) for row in rows]), values.astype(float))


def test_the_name_may_be_left_out_where_only_one_type_has_several_vertices(tmp_path: Path) -> None:
    several = {name: FOUND[name] for name in FOUND if name != "Page.links.topic"}
    assert [*gridml.table(several)] == [*columns()]
    assert [*gridml.table({"Shared.moved": np.zeros(1)})] == ["ids", "moved"]
    with pytest.raises(
        UsageError, match=r"several tables; expected the name of one .*Page \(3 rows\), Shared \(1 rows\)"
    ):
        gridml.table(FOUND)
    with pytest.raises(UsageError, match=r"no fields of Pgae; expected one of its tables: Page"):
        gridml.table(FOUND, "Pgae")
    with pytest.raises(UsageError, match="no arrays of vertices; what modules learnt"):
        gridml.table({"Network.model": {}})


def test_mistakes_say_what_was_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, said in (
        ("pages.xlsx", r"names no format by its suffix; expected one of .parquet, .csv, .tsv, .npz"),
        ("none/pages.csv", r"cannot be written: No such file or directory. Name a file in a folder that exists"),
    ):
        with pytest.raises(UsageError, match=said):
            gridml.export(FOUND, tmp_path / path, "Page")
    with pytest.raises(UsageError, match=r"gridml.table got list; expected a run, or what gridml.load"):
        gridml.table([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"which='best' with arrays; expected it with a run only"):
        gridml.table(FOUND, "Page", which="best")
    with pytest.raises(UsageError, match=r"columns of Page of unequal length: \{'rank': 3, .*'x': 2"):
        gridml.table({**FOUND, "Page.x": np.zeros(2)}, "Page")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UsageError, match=r"pyarrow, which is not installed. Install it: pip install pyarrow; or name a"
    ):
        gridml.export(FOUND, tmp_path / "pages.parquet", "Page")


def test_a_file_that_is_there_stays_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "pages.npz"
    gridml.export(FOUND, path, "Page")
    before = path.read_bytes()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match=r"folder.csv cannot be written"):
        gridml.export(FOUND, tmp_path / "folder.csv", "Page")
    with pytest.raises(ValueError, match="pickle"):
        gridml.export({"Page.x": np.array([object(), None])}, path, "Page")
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder.csv", "pages.npz"]


@pytest.mark.parametrize("names", [["home", "news", "shop", "cart"], [10**15, 7, 3, -2]])
def test_a_run_and_a_computation_give_the_users_ids(tmp_path: Path, names: list[Any]) -> None:
    program = tmp_path / "named.py"
    program.write_text(STEPS.format(names=names))
    computed = gridml.compute(program, threads=1)
    run = gridml.simulate(program, workers=2, cost="t_x=0.01,t_s=1,push=0.1", run_dir=tmp_path / "run")
    page = gridml.table(computed, "Page")
    assert dict(zip(page["ids"].tolist(), page["steps"].tolist(), strict=True)) == dict(
        zip(names, [0, 1, 1, 2], strict=True)
    )
    for result in (run, str(run.run_dir), f"{run.run_dir}:final", run.load(), gridml.load(run)):
        for name, values in gridml.table(result, "Page").items():
            np.testing.assert_array_equal(values, gridml.table(computed, "Page")[name])
    with pytest.raises(UsageError, match="no fields of Page"):  # a run keeps local fields as they are now
        gridml.table(run, "Page", which="e1")


@pytest.mark.parametrize("method", ["none", "parsa"])
def test_a_run_in_which_nothing_is_replicated_has_results_too(tmp_path: Path, method: str) -> None:
    """It was said to have no replica yet. Its vertices are linked, so a placement changes nothing but their parts."""
    text = (PROGRAMS / "supersteps.py").read_text()
    assert "epochs=15)" in text
    file = tmp_path / "supersteps.py"
    file.write_text(text.replace("epochs=15)", f"epochs=3, placement={method!r})"))
    run = gridml.simulate(file, workers=3, chunk=300, cost="t_x=0.01,t_s=1,push=0.1", run_dir=tmp_path / "run")
    placed = run.report().placement
    assert placed is None if method == "none" else "3 parts, as many as workers" in str(placed)
    pages = gridml.table(run)
    assert [*pages] == ["ids", "rank", "steps"] and set(pages["steps"].tolist()) == {3}
    assert run.metrics()[-1]["difference"] < 1e-15 and run.metrics()[-1]["best"] == int(pages["rank"].argmax())
