"""Lists of edges: numbers that need not follow on one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite
from gridml.placement.files.edge_list import read_numbered
from gridml.placement.files.source import Source

NEAR = st.integers(-20, 20)
FAR = st.integers(-(2**63) + 2, 2**63 - 2)
SEPARATOR = st.sampled_from(["\t", " ", ",", ", ", " ,\t", "   "])
REST = st.sampled_from(["", "\t1", " 3.5 x", ",2024-01-01", " "])


@pytest.mark.usefixtures("small_blocks")
@given(
    st.lists(st.tuples(NEAR | FAR, SEPARATOR, NEAR | FAR, REST), min_size=1, max_size=30),
    st.sampled_from(["a.edges", "a.tsv.gz", "a.csv", "a.txt", "a.txt.gz"]),
    st.sampled_from(["\n", "\r\n", "\n\n# a comment\n", "\n% another\n"]),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(
    read_text: Callable[..., Bipartite],
    edges_of: Callable[..., set[tuple[int, int]]],
    edges: list[tuple[int, str, int, str]],
    name: str,
    end: str,
    ended: bool,
) -> None:
    graph = read_text(name, "# edges\n" + end.join(f"{u}{apart}{v}{rest}" for u, apart, v, rest in edges) + end * ended)
    rows, columns = sorted({u for u, _, _, _ in edges}), sorted({v for _, _, v, _ in edges})
    assert edges_of(graph) == {(rows.index(u), columns.index(v)) for u, _, v, _ in edges}
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


def test_numbers_are_kept_and_those_of_a_general_graph_are_vertices(
    tmp_path: Path, edges_of: Callable[..., set[tuple[int, int]]]
) -> None:
    (tmp_path / "a.txt").write_text("7 -1\n3 7\n7 3000000000\n")
    source = Source(tmp_path / "a.txt")
    found = read_numbered(source)
    assert found.rows is not None and found.rows.tolist() == [3, 7]
    assert found.columns is not None and found.columns.tolist() == [-1, 7, 3000000000]
    assert edges_of(found.graph) == {(0, 1), (1, 0), (1, 2)}
    found = read_numbered(source, general=True)
    assert found.rows is not None and found.columns is not None
    assert found.rows.tolist() == found.columns.tolist() == [-1, 3, 7, 3000000000]
    assert (found.graph.rows, found.graph.columns) == (4, 4) and edges_of(found.graph) == {(1, 2), (2, 0), (2, 3)}
