"""Costs are times; other values are rejected by name."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from chunk_model.goodput import CostError, Costs

NAMES = [field.name for field in fields(Costs)]


def test_only_training_needs_a_cost() -> None:
    costs = Costs(exec_s=0.5)
    assert [getattr(costs, name) for name in NAMES[1:]] == [0, 0, 0, None, 0, 0]
    assert Costs(exec_s=0.5, copy_s=0.25).vertex_s == 0.75


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_is_not_a_time_is_refused(name: str, value: float) -> None:
    with pytest.raises(CostError, match=f"{name} must be a time in seconds, finite and at least 0, got {value}"):
        Costs(**({"exec_s": 1.0} | {name: value}))


def test_training_takes_time_and_a_push_may_cost_nothing() -> None:
    with pytest.raises(CostError, match="exec_s, the time to train a vertex, must be above 0"):
        Costs(exec_s=0)
    assert Costs(exec_s=1, push_s=0).push_s == 0
