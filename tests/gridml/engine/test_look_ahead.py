"""Batches that are trained where the steps of other workers are expected to lead."""

from __future__ import annotations

from typing import Any

import pytest

from gridml.engine.look_ahead import FADING, LookAhead

torch = pytest.importorskip("torch")


def parameter(*values: float) -> Any:
    return torch.nn.Parameter(torch.tensor(values))


def step(ahead: LookAhead, optimiser: Any, others: int, move: list[float]) -> list[float]:
    """Move the only parameter of an optimiser in a batch; return where the batch began."""
    (weight,) = optimiser.param_groups[0]["params"]
    with ahead.batch([optimiser], others):
        began: list[float] = weight.data.tolist()
        weight.data += torch.tensor(move)
    return began


def test_a_batch_begins_where_steps_like_its_own_would_lead_and_keeps_its_own_step_only() -> None:
    weight, ahead = parameter(0.0, 0.0), LookAhead()
    optimiser = torch.optim.SGD([weight], lr=1.0)
    assert step(ahead, optimiser, 3, [1.0, 0.0]) == [0.0, 0.0]  # no step is known
    assert step(ahead, optimiser, 3, [1.0, 0.0]) == [1.0, 0.0]  # whether steps are alike is not known
    assert step(ahead, optimiser, 3, [1.0, 0.0]) == [5.0, 0.0]  # they are: three more from 2
    assert weight.tolist() == [3.0, 0.0]
    assert step(ahead, optimiser, 1, [0.0, 1.0]) == [4.0, 0.0]
    correlation = (FADING**2 + FADING) / (FADING**2 + FADING + 1)
    assert step(ahead, optimiser, 1, [0.0, 0.0]) == pytest.approx([3.0, 1.0 + correlation])
    assert weight.tolist() == pytest.approx([3.0, 1.0])


def test_steps_that_differ_foretell_nothing() -> None:
    weight, ahead = parameter(0.0), LookAhead()
    optimiser = torch.optim.SGD([weight], lr=1.0)
    for k in range(6):
        assert step(ahead, optimiser, 15, [(-1.0) ** k]) == [float(k % 2)]


def test_momentum_is_foreseen() -> None:
    weight, ahead = parameter(4.0, -2.0), LookAhead()
    optimiser = torch.optim.SGD([weight], lr=0.01, momentum=0.9)
    for _ in range(20):
        with ahead.batch([optimiser], 3):
            optimiser.zero_grad()
            (weight**2).sum().backward()
            optimiser.step()
    (last,) = ahead._last.values()
    assert 0.8 < last.correlation <= 1.0


def test_what_was_dropped_is_forgotten_and_other_tensors_have_no_step() -> None:
    weight, ahead = parameter(0.0), LookAhead()
    optimiser = torch.optim.SGD([weight], lr=1.0)
    for _ in range(3):
        step(ahead, optimiser, 3, [1.0])
    ahead.forget()
    assert step(ahead, optimiser, 3, [1.0]) == [3.0]
    weight.data = torch.zeros(2)
    assert step(ahead, optimiser, 3, [1.0, 1.0]) == [0.0, 0.0]


def test_what_is_not_trained_stays() -> None:
    weight, frozen, ahead = parameter(0.0), parameter(7.0), LookAhead()
    frozen.requires_grad_(False)
    optimiser = torch.optim.SGD([weight, frozen], lr=1.0)
    for _ in range(4):
        with ahead.batch([optimiser], 3):
            assert frozen.tolist() == [7.0]
            weight.data += 1.0
    assert frozen.tolist() == [7.0]


def test_f_may_assign_other_data() -> None:
    weight, ahead = parameter(0.0), LookAhead()
    optimiser = torch.optim.SGD([weight], lr=1.0)
    for _ in range(3):
        with ahead.batch([optimiser], 3):
            weight.data = weight.data + 1.0
    assert weight.tolist() == [3.0]
