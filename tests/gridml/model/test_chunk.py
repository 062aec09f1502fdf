"""A chunk is an exact part of the graph: the same rows, and every edge leads to the same vertex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.format import open_memmap

import gridml
from gridml.model.chunk import BEFORE, Chunk, bytes_each, cut
from gridml.model.graph import Edges, components
from gridml.model.order import EpochOrder
from gridml.protocol import bundle


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Author(gridml.Vertex):
    name = gridml.array("uint8", (3,))
    favourite = gridml.edge(Word)


class Text(gridml.Vertex):
    score = gridml.array("float32", (2,), mutable=True)
    cites = gridml.edge("Text", weight="float64")
    words = gridml.edge(Word, weight="float32")
    pair = gridml.edge(Word)
    author = gridml.edge(Author)


class Note(gridml.Vertex):
    """It has edges to texts, and none from them, so f cannot see it."""

    about = gridml.edge(Text)
    words = gridml.edge(Word)


@st.composite
def lists(draw: st.DrawFn, count: int, targets: int, most: int = 3) -> Edges:
    """Random CSR edges, with weights that name their edge."""
    degrees = draw(st.lists(st.integers(0, most), min_size=count, max_size=count))
    total = sum(degrees)
    ends = draw(st.lists(st.integers(0, targets - 1), min_size=total, max_size=total))
    return gridml.csr(np.concatenate([[0], np.cumsum(degrees, dtype=int)]), ends, np.arange(total, dtype=float))


@st.composite
def graphs(draw: st.DrawFn) -> gridml.Graph:
    texts, authors, words = draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    g = gridml.Graph()
    g.add(Word, count=np.zeros(words, int))
    g.add(
        Author, name=np.arange(authors * 3).reshape(-1, 3).astype(np.uint8), favourite=np.arange(authors) % words
    )  # fmt: skip
    pair = draw(st.lists(st.tuples(*[st.integers(0, words - 1)] * 2), min_size=texts, max_size=texts))
    g.add(
        Text,
        score=np.arange(texts * 2, dtype=np.float32).reshape(-1, 2),
        cites=draw(lists(texts, texts, most=1)),
        words=draw(lists(texts, words)),
        pair=np.array(pair),
        author=np.array(draw(st.lists(st.integers(0, authors - 1), min_size=texts, max_size=texts))),
    )
    g.add(Note, about=np.array([0]), words=np.array([0]))
    g.check()
    return g


def table(name: str) -> str:
    return name.removesuffix(BEFORE)


def assert_faithful(chunk: Chunk, g: gridml.Graph) -> None:
    for name, rows in chunk.tables.items():
        assert rows.type == table(name)
        assert len(set(rows.ids.tolist())) == len(rows.ids)
        if g.tables[rows.type].type.replicated:
            assert rows.fields == {}
            continue
        for field, column in g.tables[rows.type].columns.items():
            np.testing.assert_array_equal(rows.fields[field], column[rows.ids])
            assert rows.fields[field].dtype == column.dtype
    for name, edges in chunk.edges.items():
        source, field = name.split("/")
        ids = chunk.tables[source].ids
        for row, vertex in enumerate(ids):
            _, expected, weight = g.tables[source].edges[field].of(np.array([vertex]))
            span = edges.span(row, row + 1)
            assert chunk.tables[edges.target].ids[edges.index[span]].tolist() == expected.tolist()
            if weight is None:
                assert edges.weight is None
            else:
                assert edges.weight is not None
                assert edges.weight[span].tolist() == weight.tolist()


def assert_equal(one: Chunk, other: Chunk) -> None:
    assert (one.driver, one.tables.keys(), one.edges.keys()) == (other.driver, other.tables.keys(), other.edges.keys())
    for name, rows in one.tables.items():
        assert rows.type == other.tables[name].type
        np.testing.assert_array_equal(rows.ids, other.tables[name].ids)
        assert rows.fields.keys() == other.tables[name].fields.keys()
        for field, column in rows.fields.items():
            np.testing.assert_array_equal(column, other.tables[name].fields[field])
    for name, edges in one.edges.items():
        theirs = other.edges[name]
        assert (edges.target, edges.degree) == (theirs.target, theirs.degree)
        for mine, their in [
            (edges.index, theirs.index),
            (edges.offsets, theirs.offsets),
            (edges.weight, theirs.weight),
        ]:
            assert (mine is None) == (their is None)
            np.testing.assert_array_equal(mine, their)
    assert (one.ends is None) == (other.ends is None)
    np.testing.assert_array_equal(one.ends, other.ends)


@given(graphs(), st.integers(0, 9), st.data())
def test_chunks_of_components_are_whole_faithful_and_survive_the_way(
    g: gridml.Graph, seed: int, data: st.DataObject
) -> None:
    parts = components(g)
    assert parts is not None
    count = g.tables["Text"].count
    order = EpochOrder(count, seed, 0, "all", parts.units["Text"])
    middle = order.boundary(data.draw(st.integers(0, count)))
    seen: dict[str, list[int]] = {"Text": [], "Author": []}
    for start, stop in [(0, middle), (middle, count)]:
        if start == stop:
            continue
        vertices = order.vertices(start, stop)
        chunk = cut(g, "Text", vertices, order.ends(start, stop), parts, bsp=False)
        np.testing.assert_array_equal(chunk.tables["Text"].ids, vertices)
        assert chunk.count == stop - start
        assert set(chunk.tables) == {"Text", "Author", "Word"}
        assert_faithful(chunk, g)
        assert_equal(Chunk.decode(chunk.encode()), chunk)
        touched = set(chunk.edges["Text/words"].index.tolist()) | set(chunk.edges["Text/pair"].index.tolist())
        touched |= set(chunk.edges["Author/favourite"].index.tolist())
        assert touched == set(range(len(chunk.tables["Word"].ids)))  # no replica without an edge to it
        assert chunk.touched().keys() == {"Author", "Word"}
        for name, ids in seen.items():
            ids += chunk.tables[name].ids.tolist()
    assert sorted(seen["Text"]) == list(range(count))
    cited = set(g.tables["Text"].edges["author"].targets.tolist())
    assert sorted(seen["Author"]) == sorted(cited)  # each in exactly one chunk


@given(graphs(), st.data())
def test_a_superstep_chunk_shows_neighbours_as_they_were(g: gridml.Graph, data: st.DataObject) -> None:
    count = g.tables["Text"].count
    vertices = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True)))
    chunk = cut(g, "Text", vertices, None, None, bsp=True)
    assert set(chunk.tables) == {"Text", "Text" + BEFORE, "Author" + BEFORE, "Word"}
    assert {edges.target for edges in chunk.edges.values()} == set(chunk.tables) - {"Text"}
    assert all(name.startswith("Text/") for name in chunk.edges)
    assert_faithful(chunk, g)
    assert_equal(Chunk.decode(chunk.encode()), chunk)


def test_how_many_bytes_go_with_a_vertex_is_a_fair_guess() -> None:
    g, count = gridml.Graph(), 2_000
    g.add(Word, count=np.zeros(3, int))
    rng = np.random.default_rng(0)
    lists = gridml.csr(np.arange(count + 1) * 4, rng.integers(0, 3, 4 * count))
    g.add(Author, name=np.zeros((count, 3), np.uint8), favourite=lists)
    chunk = cut(g, "Author", np.arange(1_000), None, components(g), bsp=False)
    assert bytes_each(g, "Author") == pytest.approx(len(chunk.encode()) / 1_000, rel=0.05)


def test_edges_of_constant_degree_keep_it() -> None:
    g = gridml.Graph()
    word = g.add(Word, count=np.zeros(1, int))
    g.add(Author, name=np.zeros((4, 3), np.uint8), favourite=word)
    edges = cut(g, "Author", np.array([3, 1]), None, None, bsp=False).edges["Author/favourite"]
    assert (edges.offsets, edges.degree, edges.index.tolist()) == (None, 1, [0, 0])
    one = edges.one_each(0, 2)
    assert one is not None
    assert one.tolist() == [0, 0]


def test_rows_with_exactly_one_edge_each_are_recognised() -> None:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(3, int))
    offsets = gridml.csr([0, 1, 2, 4, 4, 5], [2, 0, 1, 1, 2])
    g.add(Author, name=np.zeros((5, 3), np.uint8), favourite=offsets)
    edges = cut(g, "Author", np.arange(5), None, None, bsp=False).edges["Author/favourite"]
    one = edges.one_each(0, 2)
    assert one is not None
    assert one.tolist() == [2, 0]
    for start, stop in [(0, 3), (2, 3), (3, 4), (2, 4)]:
        assert edges.one_each(start, stop) is None
    last = edges.one_each(4, 5)
    assert last is not None
    assert last.tolist() == [2]


def test_a_chunk_of_a_memory_mapped_column_is_in_memory(tmp_path: Path) -> None:
    column = open_memmap(tmp_path / "names.npy", "w+", np.uint8, (10, 3))
    column[:] = np.arange(10)[:, None]
    g = gridml.Graph()
    g.add(Author, name=column, favourite=g.add(Word, count=np.zeros(1, int)))
    fields = cut(g, "Author", np.array([8, 2]), None, None, bsp=False).tables["Author"].fields
    assert not np.shares_memory(fields["name"], column)
    assert fields["name"][:, 0].tolist() == [8, 2]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"driver": "A", "tables": {"A": "A"}, "edges": {}},
        {"driver": "A", "tables": [], "edges": {}},
        {"driver": "A", "tables": {}, "edges": {"A/b": 3}},
        {"driver": "A", "tables": {}, "edges": {"A/b": ["B", 1]}},
    ],
)
def test_what_is_no_chunk_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a chunk"):
        Chunk.decode(bundle.encode(message, {}))
