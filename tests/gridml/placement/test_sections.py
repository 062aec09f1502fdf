"""Sections of parts: their definition, and that with them a piece of a part touches fewer columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.placement.bipartite import Bipartite
from gridml.placement.sections import sections


@st.composite
def graphs(draw: st.DrawFn) -> Bipartite:
    lists = st.lists(st.integers(0, 12), max_size=5, unique=True)
    rows = draw(st.lists(lists, min_size=1, max_size=60))
    return Bipartite.from_rows(np.cumsum([0, *map(len, rows)]), np.array([v for row in rows for v in row], int), 13)


@given(graphs(), st.integers(1, 4), st.integers(1, 5), st.data())
def test_sections_of_a_part_are_alike_in_size(graph: Bipartite, parts: int, each: int, data: st.DataObject) -> None:
    label = st.integers(0, parts - 1)
    rows = np.array(data.draw(st.lists(label, min_size=graph.rows, max_size=graph.rows)), np.int32)
    found = sections(graph, rows, parts, each, 0)
    assert found.dtype == np.int32
    for part in range(parts):
        sizes = np.bincount(found[rows == part], minlength=each)
        assert len(sizes) == each
        assert sizes.max() - sizes.min() <= 1 or sizes[0] == sizes.sum() < each


def test_rows_that_touch_the_same_columns_are_in_one_section() -> None:
    rng = np.random.default_rng(0)
    parts, each, rows = 3, 4, 1_200
    part, group = np.divmod(rng.permutation(rows) % (parts * each), each)
    own = (part * each + group)[:, None] * 20 + rng.integers(0, 20, (rows, 6))
    graph = Bipartite.from_edges(np.repeat(np.arange(rows), 6), own.ravel(), (rows, parts * each * 20))
    found = sections(graph, part.astype(np.int32), parts, each, 0)
    touched = {(p, s, column) for p, s, near in zip(part, found, own, strict=True) for column in near}
    assert len(touched) < 0.7 * parts * each * each * 20, "by chance a section touches nearly all that its part does"
    again = sections(graph, part.astype(np.int32), parts, each, 0)
    np.testing.assert_array_equal(found, again)


def test_a_part_that_is_one_section_costs_nothing() -> None:
    graph = Bipartite.from_rows([0, 1, 2], [0, 1], 2)
    assert sections(graph, np.array([0, 1], np.int32), 2, 1, 0).tolist() == [0, 0]


def test_a_part_whose_rows_touch_nothing_is_divided_as_well() -> None:
    graph = Bipartite.from_edges([0, 1], [0, 0], (100, 3))
    found = sections(graph, np.repeat([0, 1], 50).astype(np.int32), 2, 5, 0)
    assert np.bincount(found[50:]).tolist() == [10] * 5
