"""What f logs is summed by vertices, and dropped with the work that it belongs to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gridml
from gridml.engine.recorder import Recorder
from gridml.errors import ProgramError
from gridml.protocol.messages import LARGEST_LOGGED, LONGEST_LOGGED, MOST_LOGGED, Logged


def logged(recorder: Recorder, *calls: tuple[int, dict[str, object]], failed: bool = False) -> tuple[Logged, ...]:
    recorder.listen()
    for vertices, values in calls:
        gridml.log(**values)
        recorder.end_call(vertices)
    recorder.end(failed=failed)
    return recorder.take()


def test_means_are_weighted_by_vertices() -> None:
    parts = logged(Recorder(), (10, {"loss": 2.0}), (30, {"loss": 4, "seen": True}))
    assert parts == (Logged("loss", 140.0, 40), Logged("seen", 30.0, 30))


def test_twice_in_a_call_counts_as_the_mean() -> None:
    recorder = Recorder()
    recorder.listen()
    gridml.log(loss=1)
    gridml.log(loss=2)
    recorder.end_call(4)
    recorder.end()
    assert recorder.take() == (Logged("loss", 6.0, 4),)
    assert recorder.take() == ()


@pytest.mark.parametrize(
    "value",
    [3, 3.0, np.float32(3), np.array([3]), torch.tensor(3.0, requires_grad=True), torch.tensor([[3]])],
    ids=["int", "float", "numpy", "array", "tensor", "integer-tensor"],
)
def test_every_kind_of_number(value: object) -> None:
    assert logged(Recorder(), (2, {"x": value})) == (Logged("x", 6.0, 2),)


def test_a_value_on_a_device_is_read_only_when_it_is_pushed() -> None:
    class OnDevice:
        """As a tensor of a device: it counts how often one waits for it."""

        device = torch.device("meta")
        read = 0

        def numel(self) -> int:
            return 1

        def detach(self) -> OnDevice:
            return self

        def clone(self) -> OnDevice:
            return self

        def __float__(self) -> float:
            OnDevice.read += 1
            return 5.0

    recorder = Recorder()
    recorder.listen()
    gridml.log(loss=OnDevice())
    recorder.end_call(2)
    recorder.end()
    assert OnDevice.read == 0
    assert recorder.take() == (Logged("loss", 10.0, 2),)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * LARGEST_LOGGED])
def test_what_is_not_finite_is_left_out_with_its_vertices(value: float) -> None:
    assert logged(Recorder(), (10, {"loss": value}), (5, {"loss": 1.0})) == (Logged("loss", 5.0, 5),)


@pytest.mark.parametrize(
    "values",
    [
        {"loss": torch.zeros(64)},
        {"loss": np.zeros(0)},
        {"loss": "low"},
        {"loss": None},
        {"x" * (LONGEST_LOGGED + 1): 1},
        {"a\nb": 1},
        {"": 1},
        {f"x{i}": 1 for i in range(MOST_LOGGED + 1)},
    ],
    ids=["batch", "empty", "text", "none", "long", "newline", "nameless", "many"],
)
def test_what_is_no_number_or_no_name_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ProgramError, match=r"gridml\.log got .*; expected"):
        logged(Recorder(), (1, values))
    Recorder().listen()  # whatever follows does not log there
    Recorder().end()


def test_what_a_failed_batch_logged_is_dropped() -> None:
    recorder = Recorder()
    assert logged(recorder, (10, {"loss": 1}), failed=True) == ()
    recorder.listen()
    gridml.log(loss=1)
    recorder.end_call(1)
    recorder.end()
    recorder.forget()
    assert recorder.take() == ()


def test_outside_f_it_does_nothing() -> None:
    gridml.log(anything="at all")
