"""Logged values are summed over vertices, and dropped with their work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import gridml
from gridml.engine.update_runner import Recorder
from gridml.errors import ProgramError
from gridml.protocol.messages import MAX_LOGGED, MAX_LOGGED_MEAN, MAX_LOGGED_NAME_CHARS, Logged
from tests.support import pretend_device
from tests.support.pretend_device import NAME


def logged(recorder: Recorder, *calls: tuple[int, dict[str, object]], failed: bool = False) -> tuple[Logged, ...]:
    recorder.begin_batch()
    for vertices, values in calls:
        gridml.log(**values)
        recorder.end_call(vertices)
    recorder.end_batch(failed=failed)
    return recorder.take()


def test_means_are_weighted_by_vertices() -> None:
    parts = logged(Recorder(), (10, {"loss": 2.0}), (30, {"loss": 4, "seen": True}))
    assert parts == (Logged("loss", 140.0, 40), Logged("seen", 30.0, 30))


def test_twice_in_a_call_counts_as_the_mean() -> None:
    recorder = Recorder()
    recorder.begin_batch()
    gridml.log(loss=1)
    gridml.log(loss=2)
    recorder.end_call(4)
    recorder.end_batch()
    assert recorder.take() == (Logged("loss", 6.0, 4),)
    assert recorder.take() == ()


@pytest.mark.parametrize(
    "value",
    [3, 3.0, np.float32(3), np.array([3]), torch.tensor(3.0, requires_grad=True), torch.tensor([[3]])],
    ids=["int", "float", "numpy", "array", "tensor", "integer-tensor"],
)
def test_every_kind_of_number(value: object) -> None:
    assert logged(Recorder(), (2, {"x": value})) == (Logged("x", 6.0, 2),)


@pytest.mark.pretended
def test_values_on_a_device_are_read_when_they_are_pushed_in_one_wait_for_each_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_device.install()
    reads: list[str] = []
    compute = pretend_device._compute

    def counted(func: Any, args: Any, kwargs: Any) -> Any:
        to_host = func._schema.name == "aten::_to_copy" and "cpu" in str(kwargs.get("device"))
        if to_host or func._schema.name == "aten::_local_scalar_dense":
            reads.append(func._schema.name)
        return compute(func, args, kwargs)

    monkeypatch.setattr(pretend_device, "_compute", counted)
    recorder = Recorder()
    for at in range(20):
        recorder.begin_batch()
        loss = torch.tensor([float(at)]).to(NAME)
        gridml.log(loss=loss, right=torch.tensor(at).to(NAME), on_host=at)
        loss += 100  # the logged value does not change
        recorder.end_call(2)
        recorder.end_batch()
    assert not reads
    assert {each.name: each.total for each in recorder.take()} == dict.fromkeys(("loss", "right", "on_host"), 380.0)
    assert len(reads) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * MAX_LOGGED_MEAN])
def test_what_is_not_finite_is_left_out_with_its_vertices(value: float) -> None:
    assert logged(Recorder(), (10, {"loss": value}), (5, {"loss": 1.0})) == (Logged("loss", 5.0, 5),)


@pytest.mark.parametrize(
    "values",
    [
        {"loss": torch.zeros(64)},
        {"loss": np.zeros(0)},
        {"loss": "low"},
        {"loss": None},
        {"x" * (MAX_LOGGED_NAME_CHARS + 1): 1},
        {"a\nb": 1},
        {"": 1},
        {f"x{i}": 1 for i in range(MAX_LOGGED + 1)},
    ],
    ids=["batch", "empty", "text", "none", "long", "newline", "nameless", "many"],
)
def test_what_is_no_number_or_no_name_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ProgramError, match=r"gridml\.log got .*; expected"):
        logged(Recorder(), (1, values))
    Recorder().begin_batch()  # whatever follows does not log there
    Recorder().end_batch()


def test_what_a_failed_batch_logged_is_dropped() -> None:
    recorder = Recorder()
    assert logged(recorder, (10, {"loss": 1}), failed=True) == ()
    recorder.begin_batch()
    gridml.log(loss=1)
    recorder.end_call(1)
    recorder.end_batch()
    recorder.forget()
    assert recorder.take() == ()


def test_outside_f_it_does_nothing() -> None:
    gridml.log(anything="at all")
