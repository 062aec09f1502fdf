"""libsvm: a row a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite

FINITE = ["1", "0.25", "-3", "1e5", ".5", "2.", "-1.5E-07", "1.0D+00", "-1d3", "1.5-103", "2.Q1", "0x1.8p3", "-0Xap-2"]
NOT_FINITE = [
    "nan",
    "NaN",
    "-inf",
    "+Infinity",
    "nan(ind)",
    "-nan(0x1)",
    "NA",
    "1.#INF",
    "-1.#IND00",
    "1.#QNAN0",
    "***",
]
VALUES = FINITE + NOT_FINITE
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["1", "-1", "+1", "0.5", "1e-3", "1,3", "nan", "1D+3"]),
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from([":", ": ", " :", "\t: "]), st.sampled_from(VALUES))),
        st.sampled_from(["\n", "\r\n", "\r", " \n", " # said\n", "# 7:1\n", "\n\n", "\n# a comment\n"]),
    ),
    max_size=12,
)


@pytest.mark.usefixtures("small_blocks")
@given(ROWS, st.sampled_from(["a.svm", "a.svm.gz"]), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(
    read_text: Callable[..., Bipartite],
    edges_of: Callable[..., set[tuple[int, int]]],
    rows: list[tuple[str, list[tuple[int, str, str]], str]],
    name: str,
    ended: bool,
) -> None:
    rows = [*rows, ("1", [(7, ":", "1")], "\n")]
    text = "".join(f"{y} {' '.join(f'{i + 1}{colon}{x}' for i, colon, x in entries)}{end}" for y, entries, end in rows)
    graph = read_text(name, text if ended else text.rstrip("\n"))
    assert edges_of(graph) == {(i, column) for i, (_, entries, _) in enumerate(rows) for column, *_ in entries}
    assert graph.rows == len(rows)
    assert graph.columns == max(column for _, entries, _ in rows for column, *_ in entries) + 1


def test_rows_without_labels_queries_and_tabs(
    read_text: Callable[..., Bipartite], edges_of: Callable[..., set[tuple[int, int]]]
) -> None:
    graph = read_text("a.libsvm", " 3:1 5:2\n2 qid:7 1:1\n1#\n-1\t2:1\t3:0\n\t5 :1 qid: 3\n")
    assert edges_of(graph) == {
        (0, 2),
        (0, 4),
        (1, 0),
        (3, 1),
        (3, 2),
        (4, 4),
    }  # an entry is an edge, whatever its value
    assert (graph.rows, graph.columns) == (5, 5)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cat 1:1", "got 'cat'; expected a number, the label"),
        ("3:1 4:1", "got '3:1'; expected a number, the label"),
        ("1, 4:1", "got '1,'; expected a number, the label"),
        ("1 4", "got '4'; expected index:value"),
        ("1 a:4", "got 'a:4'; expected index:value"),
        ("1 2:1 3:", "got '3:'; expected index:value with a number as value"),
        ("1 2:1 3:x", "got '3:x'; expected index:value with a number"),
        ("1 2:1 3:1.2.3", "got '3:1.2.3'"),
        ("1 2:1 3:1e", "got '3:1e'"),
        ("1 2:1 3:0x", "got '3:0x'"),
        ("1 2:1 3:nano", "got '3:nano'"),
        ("1 2:1 3:infinite", "got '3:infinite'"),
        ("1 2:1 3:nan(1", "got '3:nan(1'"),
        ("1 2:1 3:1-3", "got '3:1-3'"),
        ("1 2: 3:4", "got '2:'; expected index:value with a number"),
        ("1 2 3:4", "got '2'; expected index:value"),
        ("1 2# :4", "got '2#'; expected index:value"),
        ("1 2:1 3:.", "got '3:.'"),
        ("1 2:1 3:4:5", "got '3:4:5'"),
        ("1 0:1", "got '0:1'; expected an index of 1 to 2,147,483,647. Add 1 to each"),
        ("1 -2:1", "got '-2:1'; expected an index of 1"),
        ("1 2147483648:1", "got '2147483648:1'; expected an index"),
        ("1 99999999999999999999999:1", "got '99999999999999999999999:1'; expected an index"),
        ("1 2:1 \x1b[2J", "\\x1b[2J'; expected index:value"),
    ],
)
def test_a_wrong_line_is_named(refused: Callable[..., None], line: str, says: str) -> None:
    for after in ("\n1 1:1\n", ""):
        for name in ("a.svm", "a.svm.gz"):
            refused(name, f"1 1:1 2:1 3:1 4:1\n\n# said\n{line}{after}", "line 4: got", says)
