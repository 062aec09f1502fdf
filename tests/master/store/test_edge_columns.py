"""Fields of edges come home with the vertices at which their edges start, and with no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gridml
from gridml.model.graph import Graph
from gridml.protocol.push import RowValues, decode, encode_patch
from master.store.local_fields import LocalFields

Ids = NDArray[np.int64]


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Text(gridml.Vertex):
    words = gridml.edge(Word, topic=gridml.array("int32", mutable=True))


@pytest.fixture
def graph() -> Graph:
    g = Graph()
    g.add(Word, 2, count=0)
    g.add(Text, words=gridml.csr(np.array([0, 2, 3, 6]), np.array([0, 1, 1, 0, 0, 1]), topic=np.arange(6)))
    return g


def pushed(ids: list[int], topic: list[int], dtype: str = "int32") -> dict[str, RowValues]:
    return {"Text:words": RowValues(np.array(ids, np.int64), {"topic": np.array(topic, dtype)})}


def test_edges_come_home_in_the_order_of_their_vertices(graph: Graph, tmp_path: Path) -> None:
    fields = LocalFields(graph, tmp_path / "fields", bsp=False, durable=False)
    fields.show(None, [])
    allowed, trained = {"Text": np.array([0, 2], np.int64)}, ("Text", np.array([2, 0], np.int64))
    push = pushed([3, 4, 5, 0, 1], [7, 8, 9, 5, 6])
    assert fields.check(push, allowed, trained) is None
    fields.committed([push])
    assert graph.tables["Text"].edges["words"].fields["topic"].tolist() == [5, 6, 2, 7, 8, 9]
    assert np.load(tmp_path / "fields" / "Text:words.topic.npy").tolist() == [5, 6, 2, 7, 8, 9]
    sha256 = fields.write_patch(1, [push])
    base = fields.merge_patches(None, [(1, 0, sha256)])
    again = LocalFields(graph, tmp_path / "fields", bsp=False, durable=False)
    again.show(base, [])
    assert graph.mutable_columns()["Text:words.topic"].tolist() == [5, 6, 2, 7, 8, 9]


def test_a_push_of_edges_travels() -> None:
    tensors = encode_patch([pushed([0, 1], [3, 4])])
    found = decode({name.removeprefix("0/"): tensor for name, tensor in tensors.items()}).fields["Text:words"]
    assert (found.ids.tolist(), found.fields["topic"].tolist()) == ([0, 1], [3, 4])


@pytest.mark.parametrize(
    ("push", "said"),
    [
        ({}, "Text:words/topic is missing"),
        (pushed([0, 1, 2], [0, 0, 0]), "fields of Text:words name vertices outside the lease"),
        (pushed([0], [0]), "fields of Text:words name other edges than those of the 1 that were trained"),
        (pushed([1, 0], [0, 0]), "fields of Text:words name other edges than those of the 1 that were trained"),
        (pushed([0, 1], [0, 0], "int64"), "Text:words/topic has int64 (2,), which does not fit the field"),
        (
            {**pushed([0, 1], [0, 0]), "No:edge": RowValues(np.empty(0, np.int64), {"x": np.empty(0)})},
            "No:edge/x is not",
        ),
        ({**pushed([0, 1], [0, 0]), "Text": RowValues(np.array([0]), {"x": np.empty(1)})}, "Text/x is not a field"),
    ],
)
def test_what_a_worker_may_not_push(graph: Graph, tmp_path: Path, push: dict[str, RowValues], said: str) -> None:
    fields = LocalFields(graph, tmp_path / "fields", bsp=False, durable=False)
    fields.show(None, [])
    found = fields.check(push, {"Text": np.array([0], np.int64)}, ("Text", np.array([0], np.int64)))
    assert found is not None
    assert said in found
