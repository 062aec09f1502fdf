"""The format of a file, and errors that all formats share."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.files import source
from gridml.placement.files.registry import FORMATS, format_of, read, read_numbered, store

MATRIX = "%%MatrixMarket matrix coordinate pattern general\n1 1 0\n"
EMPTY = {"libsvm": "1\n-1\n", "edges": "# nothing\n", "hmetis": "1 2\n\n", "matrix-market": MATRIX}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.svm", "libsvm"),
        ("A.LIBSVM.GZ", "libsvm"),
        ("a.mtx.gz", "matrix-market"),
        ("a.edges", "edges"),
        ("a.tsv.gz", "edges"),
        ("a.mtx.hgr.gz", "hmetis"),
        ("a.npz", "npz"),
    ],
)
def test_the_name_says_the_format(name: str, form: str) -> None:
    assert format_of(Path("data.svm.d") / name).name == form


def test_a_name_that_says_none(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"a9a: the ending of its name is no known format; expected one of libsvm \(.svm .* --format"
    ):
        read(tmp_path / "a9a")
    with pytest.raises(UsageError, match=r"no format 'svm'; expected libsvm, matrix-market, edges, hmetis, npz"):
        read(tmp_path / "a9a", "svm")
    (tmp_path / "a9a").write_text("1 1:1\n")
    assert read(tmp_path / "a9a", "libsvm").edges == 1


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_files_that_cannot_be_read(tmp_path: Path, form: str) -> None:
    with pytest.raises(UsageError, match=r"nowhere cannot be read: No such file or directory"):
        read(tmp_path / "nowhere", form)
    if form != "csr-folder":
        with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
            read(tmp_path, form)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_an_empty_file(tmp_path: Path, form: str) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(UsageError, match=f"{tmp_path / 'a'}.*expected"):
        read(tmp_path / "a", form)


@pytest.mark.parametrize("form", sorted(EMPTY))
def test_a_graph_without_edges(refused: Callable[..., None], form: str) -> None:
    refused(
        f"a{FORMATS[form].endings[0]}",
        EMPTY[form],
        f"and no edges; expected rows that touch columns, in the format {form}. Check",
    )


@pytest.mark.parametrize("form", sorted(EMPTY))
def test_a_graph_without_edges_is_not_stored(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"a{FORMATS[form].endings[0]}"
    file.write_text(EMPTY[form])
    with pytest.raises(UsageError, match=f"{file}: holds [0-9]+ rows and no edges"):
        store(file, tmp_path / "stored")
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("form", ["libsvm", "edges", "hmetis", "matrix-market"])
def test_a_damaged_gzip(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PIECE", 100)
    text = {
        "libsvm": "1 1:1\n" * 3000,
        "edges": "1 2\n" * 3000,
        "hmetis": "2999 2\n" + "1 2\n" * 2999,
        "matrix-market": "%%MatrixMarket matrix coordinate pattern general\n2 2 2998\n" + "1 2\n" * 2998,
    }[form].encode()
    whole = gzip.compress(text)
    for content, least in ((whole[:-12], 0), (whole[:-8] + b"12345678", 2700), (whole[:4], 0)):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UsageError) as raised:
            read(tmp_path / "a", form)
        said = re.match(rf"{tmp_path / 'a'} is damaged after line ([\d,]+): ", str(raised.value))
        assert said is not None and least <= int(said[1].replace(",", "")) <= 3000, str(raised.value)


def test_who_watches_sees_a_file_to_its_end(tmp_path: Path, read_text: Callable[..., Bipartite]) -> None:
    for name, content in (("a.tsv", b"1 2\n" * 99999), ("a.tsv.gz", gzip.compress(b"1 2\n" * 99999))):
        (tmp_path / name).write_bytes(content)
        progress: list[tuple[int, int]] = []
        read(tmp_path / name, watch=lambda done, size, progress=progress: progress.append((done, size)))
        assert progress == sorted(progress) and progress[-1] == (len(content), len(content))


def test_a_line_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK", 100)
    monkeypatch.setattr(source, "PIECE", 30)
    (tmp_path / "a.svm").write_text("1 " + " ".join(f"{i}:1" for i in range(1, 501)) + "\n1 2:1\n")
    graph = read(tmp_path / "a.svm")
    assert (graph.rows, graph.columns, graph.edges) == (2, 500, 501)


@pytest.mark.usefixtures("small_blocks")
@given(
    st.sampled_from([("a.svm", ""), ("a.txt", ""), ("a.hgr", "2 9\n"), ("a.mtx", MATRIX.replace("1 1 0", "9 9 2"))]),
    st.lists(st.sampled_from([*"0123456789:-+.eE,#% \t\r\nqx\x00\xe9", "qid:", "1:1", "1 2\n", "9" * 19])).map("".join),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_a_graph_or_a_mistake(
    read_text: Callable[..., Bipartite], name_and_head: tuple[str, str], text: str
) -> None:
    name, head = name_and_head
    try:
        graph = read_text(name, head + text)
    except UsageError as error:
        assert name in str(error) and "expected" in str(error)
    else:
        remade = Bipartite.from_rows(graph.offsets, graph.neighbours, graph.columns)
        assert remade.edges == graph.edges > 0


def test_a_general_graph_of_any_format(tmp_path: Path, edges_of: Callable[..., set[tuple[int, int]]]) -> None:
    """The graph is a path of three vertices, 0 - 1 - 2, in each format."""
    texts = {
        "a.txt": "10 11\n12 11\n",
        "a.svm": "0 2:1\n0 1:1 3:1\n0 2:1\n",
        "a.mtx": "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        near = read_numbered(tmp_path / name, kind="vertices")
        assert edges_of(near.graph) == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)}
        ends = read_numbered(tmp_path / name, kind="edges")
        assert edges_of(ends.graph) == {(0, 0), (0, 1), (1, 1), (1, 2)} and ends.rows is None
        for known in (near.rows, near.columns, ends.columns):
            assert known is None if name != "a.txt" else known is not None and known.tolist() == [10, 11, 12]


def test_what_is_no_general_graph(tmp_path: Path) -> None:
    (tmp_path / "a.hgr").write_text("1 2\n1 2\n")
    with pytest.raises(UsageError, match=r"a\.hgr: is a hypergraph, which is bipartite; expected a graph for rows as"):
        read_numbered(tmp_path / "a.hgr", kind="cliques")
    (tmp_path / "a.txt").write_text("1 1\n2 2\n")
    with pytest.raises(UsageError, match=r"a\.txt: the graph has no edge between two vertices; expected one"):
        read_numbered(tmp_path / "a.txt", kind="edges")
    with pytest.raises(UsageError, match=r"the kind of rows is 'nodes'; expected bipartite, vertices, edges, cliques"):
        read_numbered(tmp_path / "a.txt", kind="nodes")
