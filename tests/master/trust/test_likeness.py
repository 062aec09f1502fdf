"""The cosine of the angle between two steps, by group of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.aggregates import VertexState
from gridml.protocol.push import PushContent, ReplicaPart, RowValues
from master.store.versions import ReplicaState
from master.trust.similarity import similarity

KEY = ("Network", 0)
NAME = "Network/0/net/weight"
GROUPS = {NAME: "Network"}
Array = np.ndarray[Any, Any]


def group_of(name: str) -> str:
    return GROUPS.get(name, name)


def nothing(type_name: str, rows: RowValues) -> Mapping[str, Array]:
    raise AssertionError("there are no local vertices")


def pushed(*values: float) -> PushContent:
    return PushContent(ReplicaPart({KEY: {NAME: np.array(values, np.float32)}}))


def rows(ids: list[int], *values: float) -> PushContent:
    return PushContent(ReplicaPart({}, {"Word": RowValues(np.array(ids), {"value": np.array(values)})}))


BASE = ReplicaState({KEY: VertexState({NAME: np.ones(2, np.float32)})}, {"Word": {"value": np.zeros(5)}})


def cosine(one: PushContent, other: PushContent) -> dict[str, float]:
    return similarity(one, other, BASE, group_of, nothing)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pushed(2, 1), pushed(5, 1), 1.0),
        (pushed(2, 1), pushed(1, 3), 0.0),
        (pushed(2, 1), pushed(0, 1), -1.0),
        (pushed(2, 2), pushed(2, 1), math.sqrt(0.5)),
        (pushed(1, 1), pushed(1, 1), 1.0),  # neither has moved
        (pushed(1, 1), pushed(2, 1), 0.0),  # one of them has
    ],
)
def test_modules(one: PushContent, other: PushContent, expected: float) -> None:
    assert cosine(one, other) == {"Network": pytest.approx(expected)}


def test_rows_are_compared_by_id_and_who_does_not_name_one_has_not_changed_it() -> None:
    assert cosine(rows([3, 1], 2.0, 1.0), rows([1, 3], 1.0, 2.0)) == {"Word/value": pytest.approx(1.0)}
    assert cosine(rows([1], 1.0), rows([3], 1.0)) == {"Word/value": 0.0}
    assert cosine(rows([1, 3], 1.0, 1.0), rows([3], 1.0)) == {"Word/value": pytest.approx(math.sqrt(0.5))}
    assert cosine(rows([1], 1.0), PushContent()) == {"Word/value": 0.0}


def test_fields_of_local_vertices_and_whole_numbers_of_rows_are_groups_of_their_own() -> None:
    before = np.array([7, 7, 7], np.int64)
    fields = {"Document": RowValues(np.array([2, 0]), {"topic": np.array([9, 7])})}
    one = PushContent(fields=fields)
    other = PushContent(fields={"Document": RowValues(np.array([0, 2]), {"topic": np.array([7, 8])})})
    assert similarity(one, other, BASE, group_of, lambda name, rows: {"topic": before[rows.ids]}) == {
        "@Document/topic": 1.0
    }
    counts = ReplicaState({}, {"Word": {"count": np.zeros(3, np.int64)}})
    part = PushContent(ReplicaPart({}, {"Word": RowValues(np.arange(3), {"count": np.array([1, 0, 0])})}))
    assert similarity(part, part, counts, group_of, nothing) == {"Word/count": 1.0}


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=4, max_size=4))
def test_it_is_symmetric_and_from_minus_one_to_one(values: list[float]) -> None:
    one, other = pushed(*values[:2]), pushed(*values[2:])
    assert cosine(one, other) == cosine(other, one)
    assert -1 <= cosine(one, other)["Network"] <= 1
