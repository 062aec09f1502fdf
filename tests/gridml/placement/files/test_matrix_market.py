"""Matrix Market, by scipy: that it is fed and asked rightly, and that its errors name file and line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite

ENTRIES = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1)
GENERAL = "%%MatrixMarket matrix coordinate real general\n"


@given(ENTRIES, st.sampled_from(["pattern", "real", "integer"]), st.booleans(), st.sampled_from(["a.mtx", "a.mtx.gz"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(
    read_text: Callable[..., Bipartite],
    edges_of: Callable[..., set[tuple[int, int]]],
    entries: set[tuple[int, int]],
    field: str,
    symmetric: bool,
    name: str,
) -> None:
    if symmetric:
        entries = {(max(pair), min(pair)) for pair in entries}
    value = {"pattern": "", "real": " -2.5e-3", "integer": " 7"}[field]
    text = f"%%MatrixMarket matrix coordinate {field} {'symmetric' if symmetric else 'general'}\n% said\n"
    text += f"9 9 {len(entries)}\n" + "".join(f"{u + 1} {v + 1}{value}\n" for u, v in entries)
    graph = read_text(name, text)
    assert edges_of(graph) == entries | ({(v, u) for u, v in entries} if symmetric else set())
    assert (graph.rows, graph.columns) == (9, 9)


def test_rows_and_columns_that_nothing_touches_are_kept(read_text: Callable[..., Bipartite]) -> None:
    graph = read_text("a.mm", GENERAL + "7 12 1\n1 1 0\n")
    assert (graph.rows, graph.columns, graph.edges) == (7, 12, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 2\n3 4\n", "line 1: Not a Matrix Market file"),
        (GENERAL, "line 2: Invalid MatrixMarket header: Premature EOF"),
        (GENERAL.replace("real", "unreal"), "line 1: Invalid MatrixMarket header element: unreal"),
        (GENERAL + "2 2 2\n1 1 1\n", "line 3: Truncated file. Expected another 1 lines; expected a Matrix Market"),
        (GENERAL + "2 2 2\n1 1 1\n2 1", "line 4: Invalid"),
        (GENERAL + "2 2 2\n1 1 1\n1 x 1\n", "line 4: Invalid integer value"),
        (GENERAL + "2 2 2\n1 1 1\n1 1 y\n", "line 4: Invalid floating-point value"),
        (GENERAL + "2 2 2\n1 1 1\n3 1 1\n", "line 4: Row index out of bounds"),
        (GENERAL + "2 2 2\n1 1 1\n1 0 1\n", "line 4: Column index out of bounds"),
        (GENERAL + "2 2 1\n1 1 1\n1 2 1\n", "line 4: Too many lines"),
        (GENERAL + "2 2 99999999999999\n1 1 1\n", "expected as many entries as fit into memory"),
        (GENERAL + "9999999999 2 1\n1 1 1\n", "has 9,999,999,999 rows and 2 columns; expected up to 2,147,483,647"),
        ("%%MatrixMarket matrix array real general\n1 2\n1\n2\n", "line 1: is a dense array; expected a matrix of"),
    ],
)
def test_a_wrong_line_is_named(refused: Callable[..., None], text: str, says: str) -> None:
    refused("a.mtx", text, says)
    refused("a.mtx.gz", text, says)
