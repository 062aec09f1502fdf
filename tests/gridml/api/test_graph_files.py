"""Graphs in files, with values and ids: the same as a plain reader reads, in blocks, and one message for bad input."""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, save_npz

import gridml
from gridml.api import graph_files
from gridml.api.graph_files import COUNTS, FileGraph
from gridml.errors import GridmlError, UsageError
from gridml.placement.files import edge_columns, scan_columns, source
from gridml.placement.files.edge_columns import TARGETS
from master.planning.trial import try_out

Edge = tuple[Any, Any, float]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRIDML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "graphs"


def edges_of(read: FileGraph) -> list[Edge]:
    """The edges by the ids in the file, in the order of rows."""
    rows = np.arange(read.rows) if read.row_ids is None else read.row_ids
    columns = np.arange(read.columns) if read.column_ids is None else read.column_ids
    ends = np.repeat(rows, np.diff(read.offsets)), columns[read.targets]
    weight = np.ones(len(read.targets)) if read.weight is None else read.weight
    return list(zip(*(each.tolist() for each in (*ends, weight)), strict=True))


def grouped(edges: list[Edge]) -> list[Edge]:
    """Edges by row, in the order of the file: what `graph_from` promises, in plain Python."""
    rows = defaultdict(list)
    for edge in edges:
        rows[edge[0]].append(edge)
    return [edge for row in sorted(rows) for edge in rows[row]]


LETTERS = st.characters(codec="utf-8", exclude_characters='"#%,;', categories=("L", "N", "P"))
WORD = st.text(LETTERS, min_size=1, max_size=6)
ROW = st.integers(-5, 10**12) | st.integers(0, 3)
VALUE = st.floats(-1e6, 1e6, width=32) | st.integers(-9, 9)


@pytest.mark.parametrize("delimiter", ["\t", ";"])
@given(
    edges=st.lists(
        st.tuples(
            st.integers(-5, 10**12) | st.integers(0, 3),
            WORD.filter(lambda word: ";" not in word and "," not in word),
            VALUE,
        ),
        min_size=1,
        max_size=60,
    )
)
def test_a_list_of_edges_is_what_a_plain_reader_reads(
    edges: list[Edge], delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("edges")
    lines = [delimiter.join(map(str, edge)) for edge in edges]
    (folder / "edges.tsv").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_files, "BLOCK_BYTES", 64)  # many blocks, and many buckets
        patch.setattr(source, "PIECE", 16)
        patch.setattr(edge_columns, "BUCKET_RECORDS", 7)
        patch.setattr(edge_columns, "MAX_BUCKETS", 5)
        read = gridml.graph_from(folder / "edges.tsv", header=False, folder=folder, weight="float64")
    words = [edge[1] for edge in edges]
    whole = all(word.lstrip("-").isdecimal() and word.isascii() and str(int(word)) == word for word in words)
    expected = [(row, int(word) if whole else word, float(value)) for row, word, value in edges]
    assert edges_of(read) == grouped(expected)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-(10**13), 10**13, places=12) | st.integers())
def test_a_number_is_that_of_python(number: Any) -> None:
    for text in (str(number), repr(float(number)), f"+{abs(float(number)):.3e}", f"{float(number):.8f}"):
        raw = np.frombuffer(f"{text}\n".encode(), np.uint8)
        found, odd = np.full(1, np.nan), np.zeros(1, np.int64)
        count = scan_columns.numbers(raw, np.array([0]), np.array([len(text)]), scan_columns.POWERS, found, odd)
        assert count or found[0] == float(text)


def test_csv_with_names_quotes_and_further_columns(tmp_path: Path) -> None:
    text = 'userId,"movieId",rating,when\r\n7,"Heat, 1995",4.5,x\r\n10,Ran, 3 ,y\r\n7,Ran,1e-1,z\r\n'
    (tmp_path / "ratings.csv").write_bytes(text.encode())
    expected = [(7, "Heat, 1995", 4.5), (7, "Ran", np.float32(0.1)), (10, "Ran", 3.0)]
    for columns in (("userId", "movieId", "rating"), (0, 1, 2)):
        header = None if isinstance(columns[0], str) else True
        assert edges_of(gridml.graph_from(tmp_path / "ratings.csv", columns=columns, header=header)) == expected
    turned = gridml.graph_from(tmp_path / "ratings.csv", columns=("movieId", "userId"))
    assert edges_of(turned) == [("Heat, 1995", 7, 1), ("Ran", 10, 1), ("Ran", 7, 1)]
    assert turned.weight is None


def test_a_graph_of_snap_has_the_same_vertices_on_both_sides(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "web.txt.gz", "wt") as file:
        file.write("# FromNodeId ToNodeId\n30 4\n4 1000\n30 30\n")
    read = gridml.graph_from(tmp_path / "web.txt.gz", general=True)
    assert edges_of(read) == [(4, 1000, 1), (30, 4, 1), (30, 30, 1)]
    assert read.row_ids is not None and read.column_ids is not None
    assert read.row_ids.tolist() == read.column_ids.tolist() == [4, 30, 1000]


def test_matrix_market_with_values_and_symmetry(tmp_path: Path) -> None:
    head = "%%MatrixMarket matrix coordinate {} {}\n% a comment\n3 3 3\n"
    entries = "2 1 0.5\n3 3 2\n3 1 -7\n"
    found = {}
    for symmetry in ("general", "symmetric", "skew-symmetric"):
        (tmp_path / "a.mtx").write_text(head.format("real", symmetry) + entries)
        os.utime(tmp_path / "a.mtx", ns=(0, len(found)))
        found[symmetry] = edges_of(gridml.graph_from(tmp_path / "a.mtx"))
    assert found["general"] == [(1, 0, 0.5), (2, 2, 2.0), (2, 0, -7.0)]
    assert sorted(found["symmetric"]) == [(0, 1, 0.5), (0, 2, -7.0), (1, 0, 0.5), (2, 0, -7.0), (2, 2, 2.0)]
    assert sorted(found["skew-symmetric"])[:2] == [(0, 1, -0.5), (0, 2, 7.0)]
    (tmp_path / "p.mtx").write_text(head.format("pattern", "general") + "2 1\n3 3\n3 1\n")
    assert gridml.graph_from(tmp_path / "p.mtx").weight is None


def test_libsvm_with_labels(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:0.5 3:1\n-1 2:1 # x\n\n0.25 qid:3 4:5\n2\n")
    read = gridml.graph_from(tmp_path / "a.svm")
    assert edges_of(read) == [(0, 0, 0.5), (0, 2, 1), (1, 1, 1), (2, 3, 5)]
    assert read.labels is not None and read.labels.tolist() == [1, -1, 0.25, 2]
    assert (read.rows, read.columns) == (4, 4)


def test_formats_without_text(tmp_path: Path) -> None:
    matrix = coo_array(([1.5, 2.5, -1.0], ([0, 2, 0], [1, 3, 0])), shape=(3, 4))
    save_npz(tmp_path / "a.npz", matrix)
    read = gridml.graph_from(tmp_path / "a.npz")
    assert sorted(edges_of(read)) == [(0, 0, -1.0), (0, 1, 1.5), (2, 3, 2.5)]
    (tmp_path / "a.hgr").write_text("2 3\n1 3\n2\n")
    assert edges_of(gridml.graph_from(tmp_path / "a.hgr")) == [(0, 0, 1), (1, 1, 1), (2, 0, 1)]
    save_npz(tmp_path / "b.npz", coo_array(([np.nan], ([0], [1])), shape=(3, 4)))
    with pytest.raises(UsageError, match=r"b\.npz: has NaN, or values that float32 does not hold"):
        gridml.graph_from(tmp_path / "b.npz")


def test_the_next_call_reads_nothing_and_a_changed_file_is_read_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\t1\n")
    first = gridml.graph_from(path)
    made = {each: each.stat().st_mtime_ns for each in cache.rglob("*")}
    gridml.graph_from(path)
    assert {each: each.stat().st_mtime_ns for each in cache.rglob("*")} == made
    assert isinstance(first.targets, np.memmap) and isinstance(first.weight, np.memmap)
    path.write_text("a\tb\t1\na\tc\t1\n")
    assert len(gridml.graph_from(path).targets) == 2
    assert len(list(cache.iterdir())) == 2
    for damaged in (COUNTS, TARGETS):
        for each in cache.rglob(damaged):
            each.write_text("{")
        assert edges_of(gridml.graph_from(path)) == [("a", "b", 1), ("a", "c", 1)]
    assert not list(cache.glob(".*"))  # nothing half made


BANNER = "%%MatrixMarket matrix coordinate real general\n"
WRONG: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "nan": ("a.tsv", "1\t2\t3\n1\t3\tnan\n", {}, "line 2: got 'nan'; expected a finite number that float32 holds"),
    "infinity": ("a.tsv", "1\t2\t-inf\n", {}, "line 1: got '-inf'; expected a finite number"),
    "too large": ("a.tsv", "1\t2\t1e39\n", {}, "line 1: got '1e39'; expected a finite number that float32 holds"),
    "no number": ("a.csv", "# x\n1,2,3\n1,2,three\n", {}, "line 3: got 'three'; expected a number, the value of the e"),
    "names": ("a.csv", "user,item,stars\n1,2,3\n", {}, "line 1: got 'stars'; expected .* pass header=True"),
    "names alone": ("a.csv", "user,item\n1,2\n3,4\n", {}, "first edge has an id that is no number, and all others"),
    "no value": ("a.csv", "1,2,3\n4,5,\n", {}, "line 2: got nothing; expected a number, the value"),
    "no id": ("a.csv", "1,2\n,5\n", {}, "line 2: got nothing; expected an id of 1 to 255 bytes"),
    "long id": ("a.csv", f"1,2\n2,{'x' * 256}\n", {}, "line 2: got 'xxx.*; expected an id of 1 to 255 bytes"),
    "fewer": ("a.csv", "1,2,3\n\n1,2\n", {}, "line 3: got '1,2' ...; expected 3 columns"),
    "more": ("a.csv", "1,2\n1,2,3\n", {}, "line 2: got '1,2,3' ...; expected 2 columns"),
    "four": ("a.csv", "1,2,3,4\n", {}, r"line 1: has 4 columns; .* columns=\(0, 1, 2\)"),
    "far": ("a.csv", "1,2,3,4\n1,2\n", {"columns": (0, 3)}, "line 2: got '1,2' ...; expected at least 4 columns"),
    "unknown": ("a.csv", "u,i\n1,2\n", {"columns": ("u", "x")}, "line 1: has the columns u, i; expected x, too"),
    "one": ("a.csv", "1,2\n", {"columns": (0,)}, r"got columns=\(0,\); expected those of row, column and perhaps"),
    "quote": ("a.csv", '1,"2\n', {}, "line 1: got .* expected quotes around a whole column"),
    "fraction": ("a.csv", "1,2,0.5\n", {"weight": "int32"}, "line 1: got '0.5'; expected a whole number that int32"),
    "empty": ("a.csv", "# nothing\n", {}, "holds no edges; expected some, in the format edges"),
    "mtx nan": ("a.mtx", f"{BANNER}2 2 1\n1 2 NaN\n", {}, "line 3: got 'NaN'"),
    "mtx row": ("a.mtx", f"{BANNER}2 2 1\n3 2 1\n", {}, "line 3: got '3'; expec"),
    "mtx less": ("a.mtx", f"{BANNER}2 2 3\n1 2 1\n", {}, "expected 2 more entries"),
    "mtx more": ("a.mtx", f"{BANNER}2 2 0\n1 2 1\n", {}, "got '1'; expected nothing after the last entry, of 0"),
    "no words": ("a.mtx", "%%MatrixMarket matrix coordinate integer general\n2 0 0\n", {}, "holds no edges; expected"),
    "svm nan": ("a.svm", "1 1:2\n1 2:nan\n", {}, "line 2: got 'nan'; expected a finite number"),
    "svm index": ("a.svm", "1 0:2\n", {}, "line 1: got '0:2'; expected an index of 1 to"),
    "svm label": ("a.svm", "x 1:2\n", {}, "line 1: got 'x'; expected a number, the label"),
    "svm pair": ("a.svm", "1 1:2 5\n", {}, "line 1: got '5'; expected index:value"),
    "no svm": ("a.svm", "1\n2\n", {}, "holds no edges; expected some, in the format libsvm"),
    "options": ("a.svm", "1 1:2\n", {"header": True}, "is in the format libsvm, and got header, which a list of edges"),
    "missing": ("b.csv", "", {}, "b.csv cannot be read: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_message_names_file_and_line(tmp_path: Path, cache: Path, name: str) -> None:
    file, text, options, said = WRONG[name]
    if name != "missing":
        (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        gridml.graph_from(tmp_path / file, **options)
    assert str(tmp_path / file) in str(error.value) or name == "one"
    assert "\n" not in str(error.value)
    assert not cache.exists() or not list(cache.iterdir())


PROGRAM = """
import numpy as np

import gridml


class Item(gridml.Vertex):
    q = gridml.array("float32")
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    p = gridml.array("float32", mutable=True)
    rated = gridml.edge(Item, weight="float32")


@gridml.exchange(over=User)
def learn(user: User, item: Item, rating: gridml.Link) -> None:
    user.p += 0.1 * rating.weight * item.q


def graph() -> gridml.Graph:
    read, g = gridml.graph_from("FILE"), gridml.Graph()
    g.add(Item, ids=read.column_ids, q=1)
    g.add(User, ids=read.row_ids, p=0, rated=read.edges())
    return g


program = gridml.Program(graph, [gridml.MiniBatch([learn], size=2)], epochs=2)
"""


def test_a_program_reads_a_file_and_gives_the_ids_back(tmp_path: Path) -> None:
    (tmp_path / "r.tsv").write_text("eva\tRan\t2\nada\tHeat\t1\neva\tHeat\t4\n")
    (tmp_path / "p.py").write_text(PROGRAM.replace("FILE", str(tmp_path / "r.tsv")))
    run = gridml.simulate(tmp_path / "p.py", workers=2, cost="t_x=0.01,push=0.1", run_dir=tmp_path / "run")
    found = gridml.load(run)
    assert dict(zip(found["User.ids"].tolist(), found["User.p"].tolist(), strict=True)) == pytest.approx(
        {"ada": 0.2, "eva": 1.2}
    )
    assert found["Item.ids"].tolist() == ["Heat", "Ran"]
    new = {"User": {"p": 0, "rated": gridml.csr([0, 2], ["Ran", "Heat"], weight=1.0), "ids": ["ida"]}}
    inferred = gridml.infer(run, new, passes=3)
    assert inferred["User.p"] == pytest.approx([0.6])
    (tmp_path / "r.tsv").write_text("eva\tRan\tnan\n")
    with pytest.raises(GridmlError, match=r"r\.tsv, line 1: got 'nan'; expected a finite number"):
        try_out(tmp_path / "p.py")
