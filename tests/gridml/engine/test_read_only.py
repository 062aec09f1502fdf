"""The error of a write to a read-only field names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.engine.engine import Engine
from gridml.engine.update_runner import BatchFailed
from gridml.errors import ProgramError
from gridml.model.chunk import cut
from gridml.model.graph import components


class Total(gridml.Vertex):
    sum = gridml.array("float64")
    aggregate = gridml.add()


class Row(gridml.Vertex):
    size = gridml.array("float64", (2,))
    other = gridml.array("float64", (2,))
    seen = gridml.array("int64", mutable=True)
    total = gridml.edge(Total)


def whole(rows: gridml.Batch[Row], total: Total) -> None:
    rows.size[:] = rows.other


def added(rows: gridml.Batch[Row], total: Total) -> None:
    rows.size += 1


def under_another_name(rows: gridml.Batch[Row], total: Total) -> None:
    of_it = rows.size[1:, :1]
    of_it *= 2


def within_numpy(rows: gridml.Batch[Row], total: Total) -> None:
    np.add(rows.other, 1, out=rows.size.reshape(-1, 2))


def one(row: Row, total: Total) -> None:
    row.size[0] = 1


def failure(f: Callable[..., None], batch: int | None) -> BaseException:
    g = gridml.Graph()
    total = g.add(Total, sum=np.zeros(1))
    g.add(Row, size=np.zeros((4, 2)), other=np.ones((4, 2)), seen=np.zeros(4, np.int64), total=total)
    update: Any = gridml.update if batch is None else gridml.update(batch=batch)
    engine = Engine(gridml.Program(lambda: g, update(f)))
    parts = components(g)
    engine.begin(cut(g, "Row", np.arange(4), None, parts, bsp=False))
    with pytest.raises(BatchFailed) as caught:
        engine.train(0, 4, 1.0)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


@pytest.mark.parametrize("f", [whole, added, under_another_name, one])
def test_the_field_is_named_and_how_it_is_made_mutable(f: Callable[..., None]) -> None:
    error = failure(f, None if f is one else 4)
    assert isinstance(error, ProgramError) and str(error).startswith("Row.size was written")
    assert "mutable=True" in str(error) and error.__traceback__ is not None


def test_an_unknown_field_keeps_numpys_message() -> None:
    assert "read-only" in str(failure(within_numpy, 4))


def of_the_user(rows: gridml.Batch[Row], total: Total) -> None:
    raise ValueError("a file of mine is read-only")


def of_their_own(rows: gridml.Batch[Row], total: Total) -> None:
    mine = np.zeros(3)
    mine.flags.writeable = False
    mine[0] = 1


@pytest.mark.parametrize("f", [of_the_user, of_their_own])
def test_another_error_stays_as_it_is(f: Callable[..., None]) -> None:
    assert type(failure(f, 4)) is ValueError
