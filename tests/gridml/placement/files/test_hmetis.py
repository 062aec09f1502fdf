"""hMETIS: hyperedges are columns, vertices are rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite

HYPEREDGES = st.lists(st.sets(st.integers(0, 11)), min_size=1, max_size=10)


@pytest.mark.usefixtures("small_blocks")
@given(
    HYPEREDGES,
    st.sampled_from(["a.hgr", "a.hgr.gz"]),
    st.sampled_from(["\n", " \r\n", "\r", "\r% a comment\n"]),
    st.sampled_from(["", "% said\n\n" * 9]),
    st.sampled_from(["", " 0"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(
    read_text: Callable[..., Bipartite],
    edges_of: Callable[..., set[tuple[int, int]]],
    hyperedges: list[set[int]],
    name: str,
    end: str,
    before: str,
    form: str,
) -> None:
    hyperedges = [*hyperedges, {3}]
    lines = [f"{len(hyperedges)} 12{form}", *(" ".join(str(v + 1) for v in pins) for pins in hyperedges)]
    graph = read_text(name, before + "".join(line + end for line in lines) + "\n\n")
    assert edges_of(graph) == {(v, column) for column, pins in enumerate(hyperedges) for v in pins}
    assert (graph.rows, graph.columns) == (12, len(hyperedges))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("% only said\n", "has no first line; expected the numbers of hyperedges and of vertices"),
        ("2 3 4 5\n", "line 1: got '2 3 4 5'; expected the numbers of hyperedges"),
        ("\n2\n1 2\n", "line 2: got '2'; expected the numbers"),
        ("two 3\n", "line 1: got 'two 3'; expected"),
        ("2 2147483648\n", "line 1: got '2 2147483648'; expected"),
        ("2 3 1\n5 1 2\n", "line 1: weights (format 1) are not taken; expected none"),
        ("2 3 11\n5 1 2\n", "line 1: weights (format 11) are not taken"),
        ("2 3\n% said\n1 2\n1 4\n", "line 4: got '4'; expected vertices from 1 to 3"),
        ("2 3\n% said\n1 2\n0 2\n", "line 4: got '0'; expected vertices from 1 to 3"),
        ("2 3\n% said\n1 2\n1 2.5\n", "line 4: got '2.5'; expected whole numbers, the vertices of a hyperedge"),
        ("2 3\n% said\n1 2\n1 a\n", "line 4: got 'a'; expected whole numbers"),
        ("4 3\n1 2\n1 3\n", "line 3: ends here; expected 2 more hyperedges"),
        ("2 3\n1 2\n1 3\n\n1 2\n", "line 5: got '1'; expected nothing after the last hyperedge"),
    ],
)
def test_a_wrong_line_is_named(refused: Callable[..., None], text: str, says: str) -> None:
    refused("a.hgr", text, says)
    refused("a.hgr.gz", text, says)
