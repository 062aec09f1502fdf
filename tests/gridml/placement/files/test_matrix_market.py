"""Matrix Market: coordinates, an entry a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite

ENTRIES = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1)
VALUES = {
    "pattern": [""],
    "real": [" -2.5e-3", " NaN", " -inf", "\t1.0D+00", " 1.5-103", " nan(ind)", " 0x1p-3"],
    "integer": [" 7", " -1"],
    "unsigned-integer": [" 18446744073709551615"],
    "complex": [" 1 2", " nan -1.5D+03"],
}
FIELDS = st.sampled_from([*VALUES]).flatmap(lambda field: st.tuples(st.just(field), st.sampled_from(VALUES[field])))
SYMMETRIES = st.sampled_from(["general", "symmetric", "skew-symmetric", "hermitian"])
GENERAL = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.usefixtures("small_blocks")
@given(ENTRIES, FIELDS, SYMMETRIES, st.sampled_from(["a.mtx", "a.mtx.gz"]), st.sampled_from(["\n", "\r\n", "\r"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(
    read_text: Callable[..., Bipartite],
    edges_of: Callable[..., set[tuple[int, int]]],
    entries: set[tuple[int, int]],
    field: tuple[str, str],
    symmetry: str,
    name: str,
    end: str,
) -> None:
    if symmetry != "general":
        entries = {(max(pair), min(pair)) for pair in entries}
    lines = [f"%%MatrixMarket matrix coordinate {field[0]} {symmetry}", "% said", f"9 9 {len(entries)}"]
    lines += [f"{u + 1} {v + 1}{field[1]}" for u, v in entries]
    graph = read_text(name, end.join(lines) + end)
    assert edges_of(graph) == entries | ({(v, u) for u, v in entries} if symmetry != "general" else set())
    assert (graph.rows, graph.columns) == (9, 9)


def test_rows_and_columns_that_nothing_touches_are_kept(read_text: Callable[..., Bipartite]) -> None:
    graph = read_text("a.mm", GENERAL + "7 12 1\n1 1 0\n")
    assert (graph.rows, graph.columns, graph.edges) == (7, 12, 1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 2\n3 4\n", "line 1: got '1' ...; expected %%MatrixMarket matrix coordinate"),
        (GENERAL, "line 1: ends here; expected the numbers of rows, columns and entries"),
        (GENERAL + "% said\n2 2\n", "line 3: got '2 2'; expected the numbers of rows, columns and entries"),
        (GENERAL.replace("real", "unreal"), "line 1: got 'unreal'; expected pattern or real or integer"),
        (GENERAL.replace("general", "antisymmetric"), "line 1: got 'antisymmetric'; expected general or symmetric"),
        (
            GENERAL.replace("real", "complex") + "2 2 1\n1 1 1\n",
            "line 3: got the line's end; expected a number, the value",
        ),
        (GENERAL.replace("real", "complex") + "2 2 1\n1 1 1 2 3\n", "line 3: got '3'; expected the end of the line"),
        (GENERAL.replace("real", "pattern") + "2 2 1\n1 1 1\n", "line 3: got '1'; expected the end of the line"),
        (GENERAL + "2 2 2\n1 1 1\n", "line 3: ends here; expected 1 more entries"),
        (GENERAL + "2 2 2\n1 1 1\n2 1", "line 4: got the line's end; expected a number, the value"),
        (GENERAL + "2 2 2\n1 1 1\n\n2", "line 5: got the line's end; expected a row and a column"),
        (GENERAL + "2 2 2\n1 1 1\n1 x 1\n", "line 4: got 'x'; expected a row and a column"),
        (GENERAL + "2 2 2\n1 1 1\n1 1 y\n", "line 4: got 'y'; expected a number, the value"),
        (GENERAL + "2 2 2\n1 1 1\n1 1 1 1\n", "line 4: got '1'; expected the end of the line"),
        (GENERAL + "2 5 2\n1 1 1\n3 1 1\n", "line 4: got '3'; expected a row from 1 to 2 and a column from 1 to 5"),
        (GENERAL + "2 2 2\n1 1 1\n1 0 1\n", "line 4: got '0'; expected a row from 1"),
        (GENERAL + "2 2 1\n1 1 1\n1 2 1\n", "line 4: got '1'; expected nothing after the last entry"),
        (GENERAL + "2 2 99999999999999\n1 1 1\n", "line 3: ends here; expected 99,999,999,999,998 more"),
        (GENERAL + "9999999999 2 1\n1 1 1\n", "line 2: got '9999999999 2 1'; expected"),
        (GENERAL.replace("general", "symmetric") + "2 3 1\n1 1 1\n", "a symmetric matrix has 2 rows and 3 columns"),
        (
            "%%MatrixMarket matrix array real general\n1 2\n1\n2\n",
            "line 1: got 'array'; expected coordinate, which says",
        ),
    ],
)
def test_a_wrong_line_is_named(refused: Callable[..., None], text: str, says: str) -> None:
    refused("a.mtx", text, says)
    refused("a.mtx.gz", text, says)
