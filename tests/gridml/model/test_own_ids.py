"""Ids that the user gives vertices: kept beside gridml's own numbers, and named by edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gridml
from gridml.errors import ProgramError


class Item(gridml.Vertex):
    q = gridml.array("float32")
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    rated = gridml.edge(Item, weight="float32", stars=gridml.array("int32"))
    first = gridml.edge(Item)


def graph(ids: Any = ("b", "a", "ü")) -> gridml.Graph:
    g = gridml.Graph()
    g.add(Item, ids=ids, q=0)
    return g


def test_edges_name_their_targets_by_ids() -> None:
    g = graph()
    assert g.tables["Item"].count == 3  # as many as there are ids
    g.add(User, ids=[7, -3], first=["ü", "b"], rated=gridml.csr([0, 2, 3], ["a", "a", "ü"], weight=0.5, stars=4))
    g.check()
    edges = g.tables["User"].edges
    assert edges["first"].targets.tolist() == [2, 0]
    assert edges["rated"].targets.tolist() == [1, 1, 2]
    assert edges["rated"].weight is not None and edges["rated"].weight.tolist() == [0.5] * 3
    assert edges["rated"].fields["stars"].tolist() == [4] * 3
    ids = g.tables["User"].ids
    assert ids is not None and (ids.tolist(), ids.dtype) == ([7, -3], np.int64)


def test_ids_of_two_calls_are_joined_and_belong_to_the_data() -> None:
    g, other = graph(), graph(["b", "a", "o"])
    assert g.digests()["Item.ids"] != other.digests()["Item.ids"]
    g.add(Item, ids=["long one"], q=0)
    ids = g.tables["Item"].ids
    assert ids is not None and ids.tolist() == ["b", "a", "ü", "long one"]
    assert "Item.ids" not in graph(None).digests()


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda g: g.add(Item, ids=["c", "c"], q=0), "got the id 'c' twice"),
        (lambda g: g.add(Item, ids=["b"], q=0), "got the id 'b' twice"),
        (lambda g: g.add(Item, ids=[1], q=0), "got ids of some vertices, or of two kinds"),
        (lambda g: g.add(Item, q=0), "got ids of some vertices"),
        (lambda g: g.add(Item, 2, ids=["c"], q=0), "arrays of unequal length for Item: ids: 1, count: 2"),
        (lambda g: g.add(Item, ids=[0.5], q=0), "got float64 of shape (1,) as ids"),
        (lambda g: g.add(Item, ids=[["c"]], q=0), "as ids; expected whole numbers or texts"),
        (lambda g: g.add(Item, ids=["c" * 1001], q=0), "got an id of 1,001 characters; expected at most 1,000"),
        (lambda g: g.add(Item, ids=np.array([2**63], np.uint64), q=0), "expected ids below 2**63"),
        (lambda g: g.add(User, first=["c"], rated=gridml.csr([0, 0], [], [], stars=0)),
         "User.first leads to Item 'c', an id that none of the 3 Item vertices has (1 of 1 edges do so)"),
    ],
)  # fmt: skip
def test_what_is_refused(add: Any, said: str) -> None:
    with pytest.raises(ProgramError) as error:
        add(graph())
    assert said in str(error.value)


def test_texts_need_targets_that_have_texts_as_ids() -> None:
    for g in (graph([1, 2, 3]), graph(None), gridml.Graph()):
        with pytest.raises(ProgramError, match="and Item vertices have no texts as ids"):
            g.add(User, first=["a"], rated=gridml.csr([0, 0], [], [], stars=0))
