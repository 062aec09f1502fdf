"""Edge lists, whose ids need not be consecutive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite
from gridml.placement.files.source import GraphSource
from gridml.placement.files.text_formats import read_numbered

NEAR = st.integers(-20, 20)
FAR = st.integers(-(2**63) + 2, 2**63 - 2)
SEPARATOR = st.sampled_from(["\t", " ", ",", ", ", " ,\t", "   "])
END = st.sampled_from(["", " ", "\t", "# said", " % said"])
THIRD = st.sampled_from(["\t1", " 3.5", ",2024-01-01", " nan", ", x", " {}", ",", "\t-1.0D+00,,"])


@pytest.mark.usefixtures("small_blocks")
@given(
    st.sampled_from([st.just(""), THIRD]).flatmap(
        lambda third: st.lists(st.tuples(NEAR | FAR, SEPARATOR, NEAR | FAR, third, END), min_size=1, max_size=30)
    ),
    st.sampled_from(["a.edges", "a.tsv.gz", "a.csv", "a.txt", "a.txt.gz"]),
    st.sampled_from(["\n", "\r\n", "\r", "\n\n# a comment\n", "\n% another\n"]),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(
    read_text: Callable[..., Bipartite],
    edges_of: Callable[..., set[tuple[int, int]]],
    edges: list[tuple[int, str, int, str, str]],
    name: str,
    end: str,
    ended: bool,
) -> None:
    graph = read_text(name, "# edges\n" + end.join("".join(map(str, edge)) for edge in edges) + end * ended)
    rows, columns = sorted({edge[0] for edge in edges}), sorted({edge[2] for edge in edges})
    assert edges_of(graph) == {(rows.index(u), columns.index(v)) for u, _, v, *_ in edges}
    assert (graph.rows, graph.columns) == (len(rows), len(columns))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("user,item", "got 'user,item'; expected two whole numbers, a row and a column. Put # before"),
        ("7", "got the line's end; expected two whole numbers"),
        ("7 ", "got the line's end; expected two"),
        ("7,", "got the line's end; expected two"),
        ("7,,3", "got ',3'; expected two"),
        ("1 2 3 4", "got '4', a fourth column; expected a row, a column and at most one more"),
        ("1,2,3,2024-01-01", "got '2024-01-01', a fourth column"),
        ("1,2,,4", "got '4', a fourth column; expected a row, a column and at most one more"),
        ("1 2 {'weight': 3} x", "got '3}', a fourth column"),
        ("5 67 8", "got '8', a third column; expected the end of the line, as the lines before have two"),
        ("5 67,", "got the line's end, a third column; expected the end"),
        ("1.5 2", "got '1.5'; expected two"),
        ("1 2x", "got '2x'; expected two"),
        ("- 2", "got '-'; expected two"),
        ("1 9223372036854775808", "got '9223372036854775808'; expected whole numbers between -92233720368547758"),
        (f"1 {'9' * 70}", f"got '{'9' * 40}...'; expected"),
    ],
)
def test_a_wrong_line_is_named(refused: Callable[..., None], line: str, says: str) -> None:
    for after in ("\n1 2\n", ""):
        refused("a.txt", f"# said\n1\t2\n3\t4\n5 6\n\n{line}{after}", "line 6: got", says)


def test_edges_with_data_as_networkx_writes_them(read_text: Callable[..., Bipartite]) -> None:
    text = "1 2 {'weight': 3, 'time': 5}\n2 3 {'weight': 0.5, '#': 1} \n3 1 {}\n"
    assert read_text("a.edges", text).edges == 3


def test_a_line_without_its_third_column(refused: Callable[..., None]) -> None:
    for line in ("3 4", "3 4 ", "3 4 # said"):
        refused(
            "a.txt", f"1 2 0.5\n{line}\n5 6 0.5\n", "line 2: got ", "; expected a third column, as the lines before"
        )


def test_numbers_are_kept_and_those_of_a_general_graph_are_vertices(
    tmp_path: Path, edges_of: Callable[..., set[tuple[int, int]]]
) -> None:
    (tmp_path / "a.txt").write_text("7 -1\n3 7\n7 3000000000\n")
    source = GraphSource(tmp_path / "a.txt")
    found = read_numbered(source)
    assert found.rows is not None and found.rows.tolist() == [3, 7]
    assert found.columns is not None and found.columns.tolist() == [-1, 7, 3000000000]
    assert edges_of(found.graph) == {(0, 1), (1, 0), (1, 2)}
    found = read_numbered(source, general=True)
    assert found.rows is not None and found.columns is not None
    assert found.rows.tolist() == found.columns.tolist() == [-1, 3, 7, 3000000000]
    assert (found.graph.rows, found.graph.columns) == (4, 4) and edges_of(found.graph) == {(1, 2), (2, 0), (2, 3)}
