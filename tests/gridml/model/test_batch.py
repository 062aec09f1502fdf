"""Batches in f: views or copies, and the write-back of changes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gridml
from gridml.errors import ProgramError
from gridml.model.batch import Batch, Neighbours, Rows
from gridml.model.vertex import VertexId, describe


class Team(gridml.Vertex):
    name = gridml.array("uint8", (2,))
    points = gridml.array("int64", mutable=True)
    elo = gridml.array("float64", (2,), mutable=True)
    active = gridml.array("bool", mutable=True)


def teams(count: int = 6, *, torch: bool = False) -> Rows:
    fields = {
        "name": np.arange(count * 2, dtype=np.uint8).reshape(-1, 2),
        "points": np.arange(count),
        "elo": np.arange(count * 2.0).reshape(-1, 2),
        "active": np.zeros(count, bool),
    }
    vertex_type = describe(Team)
    return Rows(vertex_type, np.arange(100, 100 + count), fields, frozenset(vertex_type.mutable), torch=torch)


def over(rows: Rows, at: Any) -> Any:
    return Batch._over(rows, at if isinstance(at, slice) else np.array(at, np.int64))


@pytest.mark.parametrize("at", [slice(1, 4), [1, 2, 3]])
def test_a_batch_has_ids_length_fields_and_vertices(at: Any) -> None:
    batch = over(teams(), at)
    assert len(batch) == 3
    assert batch.ids.tolist() == [101, 102, 103]
    assert batch.points.tolist() == [1, 2, 3]
    assert batch.name.shape == (3, 2)
    assert [team.get_id() for team in batch] == [VertexId("Team", i) for i in (101, 102, 103)]
    assert [team.points for team in batch] == [1, 2, 3]


def test_consecutive_rows_are_a_view_and_writes_are_seen_at_once() -> None:
    rows = teams()
    batch = over(rows, slice(1, 4))
    assert np.shares_memory(batch.points, rows.fields["points"])
    batch.points += 10
    batch.elo[:, 0] = -1
    assert rows.fields["points"].tolist() == [0, 11, 12, 13, 4, 5]
    batch._write_back()
    assert rows.fields["elo"][:, 0].tolist() == [0, -1, -1, -1, 8, 10]


def test_scattered_rows_come_home_when_f_returns() -> None:
    rows = teams()
    batch = over(rows, [4, 1])
    batch.points = [40, 10]
    batch.elo[0] += 0.5
    assert batch.points.tolist() == [40, 10]
    assert rows.fields["points"].tolist() == [0, 1, 2, 3, 4, 5]
    batch._write_back()
    assert rows.fields["points"].tolist() == [0, 10, 2, 3, 40, 5]
    assert rows.fields["elo"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8.5, 9.5], [10, 11]]


@pytest.mark.parametrize("at", [slice(1, 3), [1, 2]])
def test_torch_programs_get_tensors_and_their_changes_come_home(at: Any) -> None:
    rows = teams(torch=True)
    batch = over(rows, at)
    assert isinstance(batch.elo, torch.Tensor)
    batch.elo.mul_(2)
    batch.points = torch.tensor([7, 8])
    batch._write_back()
    assert rows.fields["elo"][1:3].tolist() == [[4, 6], [8, 10]]
    assert rows.fields["points"].tolist() == [0, 7, 8, 3, 4, 5]


@pytest.mark.parametrize("at", [slice(1, 3), [1, 2]])
def test_fields_that_do_not_come_home_cannot_be_written(at: Any) -> None:
    batch = over(teams(), at)
    with pytest.raises(ProgramError, match=r"Team\.name was written, which is read-only here"):
        batch.name = np.zeros((2, 2))
    with pytest.raises(ValueError, match="read-only"):
        batch.name[0] = 1
    with pytest.raises(ProgramError, match=r"Team\.nmae was written; it is not an array field\. Team has \['name'"):
        batch.nmae = 1


def test_unknown_fields_are_named_with_what_there_is() -> None:
    links = {"away": Neighbours(np.zeros(0), np.zeros(1), None)}
    batch: Any = Batch._over(teams(), slice(0, 2), links)
    assert batch.away is links["away"]
    with pytest.raises(AttributeError, match=r"Team has no field 'goals' here; it has \['name'.*edges \['away'\]"):
        _ = batch.goals
    assert isinstance(copy.copy(batch), Batch)


def test_rows_that_f_did_not_change_leave_what_others_wrote() -> None:
    rows = teams()
    mine, theirs = over(rows, [0, 1, 2]), over(rows, [2, 3])
    _ = mine.points, theirs.points, mine.active
    theirs.points = [20, 30]
    mine.points[0] = 9
    for batch in (theirs, mine):
        batch._write_back()
    assert rows.fields["points"].tolist() == [9, 1, 20, 30, 4, 5]


def test_writes_through_single_vertices_are_kept_too() -> None:
    rows = teams()
    batch = over(rows, [1, 3])
    before = batch.points.copy()
    for team in batch:
        team.points += 10
    batch._write_back()
    assert before.tolist() == [1, 3]
    assert rows.fields["points"].tolist() == [0, 11, 2, 13, 4, 5]


@given(st.lists(st.integers(0, 5), min_size=1, unique=True), st.lists(st.integers(0, 5), min_size=1, unique=True))
def test_a_row_that_two_batches_changed_has_both_changes(home: list[int], away: list[int]) -> None:
    rows = teams()
    hosts, guests = over(rows, home), over(rows, away)
    hosts.points += 3
    guests.points -= 1
    hosts.elo = hosts.elo + 1.5
    guests.elo -= 0.5
    hosts.active[:] = True
    for batch in (hosts, guests):
        batch._write_back()
    change = np.array([3 * (i in home) - (i in away) for i in range(6)])
    np.testing.assert_array_equal(rows.fields["points"], np.arange(6) + change)
    np.testing.assert_array_equal(rows.fields["elo"], np.arange(12.0).reshape(-1, 2) + (change / 2)[:, None])
    assert rows.fields["active"].tolist() == [i in home for i in range(6)]


def test_an_empty_batch_is_a_batch() -> None:
    rows = teams()
    batch = over(rows, [])
    batch.points += 1
    batch.elo = np.zeros((0, 2))
    batch._write_back()
    assert (len(batch), list(batch), batch.elo.shape) == (0, [], (0, 2))
    assert rows.fields["points"].tolist() == [0, 1, 2, 3, 4, 5]
