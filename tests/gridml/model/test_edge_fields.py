"""Fields of edges: declared beside the weight, given by csr, carried by chunks, and changed by stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.errors import ProgramError
from gridml.model.chunk import Chunk, cut
from gridml.model.graph import Edges, Graph


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Text(gridml.Vertex):
    words = gridml.edge(
        Word,
        weight="float32",
        topic=gridml.array("int32", mutable=True),
        place=gridml.array("float64", (2,)),
    )


OFFSETS, ENDS = np.array([0, 2, 2, 5]), np.array([0, 1, 2, 0, 1])
TOPIC, PLACE = np.arange(5), np.arange(10.0).reshape(5, 2)


def words(**given: Any) -> Edges:
    return gridml.csr(OFFSETS, ENDS, np.ones(5), **{"topic": TOPIC, "place": PLACE, **given})


def graph() -> Graph:
    g = Graph()
    g.add(Word, 3, count=0)
    g.add(Text, words=words())
    return g


def test_a_chunk_carries_the_fields_of_its_edges_and_where_they_are() -> None:
    chunk = cut(graph(), "Text", np.array([2, 0]), None, None, bsp=False)
    for found in (chunk, Chunk.decode(chunk.encode())):
        edges = found.edges["Text/words"]
        assert edges.fields["topic"].tolist() == [2, 3, 4, 0, 1]
        assert edges.fields["place"].tolist() == PLACE[[2, 3, 4, 0, 1]].tolist()
        assert edges.places is not None
        assert edges.places.tolist() == [2, 3, 4, 0, 1]
        assert edges.fields["topic"].dtype == np.int32


def test_mutable_columns_are_those_of_vertices_and_edges() -> None:
    g = graph()
    assert list(g.mutable_columns()) == ["Text:words.topic"]
    before = g.digests()
    g.replace_column("Text:words.topic", np.full(5, 9, np.int32))
    assert g.mutable_columns()["Text:words.topic"].tolist() == [9] * 5
    assert g.tables["Text"].edges["words"].fields["place"] is not None
    assert g.digests() != before
    assert g.fingerprint()["Text"]["edges words"] == {
        "topic": ["<i4", [], True],
        "place": ["<f8", [2], False],
    }


def test_vertices_that_are_added_again() -> None:
    g = graph()
    g.add(Text, words=words(topic=TOPIC + 5))
    edges = g.tables["Text"].edges["words"]
    assert edges.fields["topic"].tolist() == list(range(10))
    assert edges.places(np.array([5, 0])).tolist() == [7, 8, 9, 0, 1]


def test_a_number_for_all_edges_is_one_number_until_a_chunk_is_cut() -> None:
    g, filled = Graph(), Graph()
    for each, given in ((g, {"weight": 2, "topic": -1}), (filled, {"weight": np.full(5, 2), "topic": np.full(5, -1)})):
        each.add(Word, 3, count=0)
        each.add(Text, words=gridml.csr(OFFSETS, ENDS, **given, place=PLACE))
    edges = g.tables["Text"].edges["words"]
    weight, topic = edges.weight, edges.fields["topic"]
    assert weight is not None and (weight.dtype, topic.dtype) == (np.float32, np.int32)
    assert (weight.strides, topic.strides) == ((0,), (0,))
    assert g.digests() == filled.digests()
    chunk = cut(g, "Text", np.array([2, 0]), None, None, bsp=False)
    assert chunk.encode() == cut(filled, "Text", np.array([2, 0]), None, None, bsp=False).encode()
    chunk.edges["Text/words"].fields["topic"][0] = 3  # each edge has its own there
    assert chunk.edges["Text/words"].fields["topic"].tolist() == [3, -1, -1, -1, -1]
    with pytest.raises(ProgramError, match="2147483648, which int32 cannot hold"):
        g.add(Text, words=words(topic=1 << 31))


def test_edges_without_fields_have_the_digests_they_had() -> None:
    plain = Edges(2, np.array([0, 1]), np.array([0, 1, 2]))
    assert plain.digest().startswith("39793669427bf0d7")  # a run that is resumed compares it
    assert plain.digest().startswith("39793669427bf0d7")
    assert replace(plain, fields={"topic": np.zeros(2)}).digest() != plain.digest()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gridml.edge(Word, topic="int32"), "edge got topic='int32'; expected a field of every edge"),  # type: ignore[arg-type]
        (lambda: gridml.edge(Word, end=gridml.array("int32")), "under a name other than end"),
        (lambda: gridml.edge(Word, loss=gridml.accumulator("int32")), "edge got loss="),
        (lambda: words(topic=TOPIC[:3]), r"csr got topic of shape \(3,\) for 5 targets"),
        (
            lambda: graph().add(Text, words=gridml.csr(OFFSETS, ENDS, np.ones(5))),
            r"declared with the fields \['topic', ",
        ),
        (lambda: graph().add(Text, words=words(other=TOPIC)), r"got \['topic', 'place', 'other'\]; give them as"),
        (lambda: graph().add(Text, words=words(place=TOPIC)), r"Text\.words\.place got values of shape \(\)"),
        (lambda: graph().add(Text, words=words(topic=TOPIC + 0.5)), r"Text\.words\.topic got dtype float64"),
    ],
)
def test_what_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        make()
