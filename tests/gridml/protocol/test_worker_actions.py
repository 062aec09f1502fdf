"""The duration of each action of a worker in a simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chunk_model.goodput import Costs
from gridml.protocol.messages import Lease
from gridml.protocol.worker_actions import Action, BeginChunk, EndChunk, Leave, Reason, TakeSnapshot, Wait, busy_seconds

COSTS = Costs(exec_s=1.0, copy_s=0.5, start_s=4.0, end_s=2.0, push_s=3.0)
LEASE = Lease(1, 1, 0, 100, 120, "lease-1", "")


@pytest.mark.parametrize(
    ("action", "expected_s"),
    [
        (BeginChunk(LEASE), 14.0),
        (EndChunk(LEASE), 2.0),
        (TakeSnapshot(LEASE, 0, 10), 3.0),
        (Wait(5.0), 0.0),
        (Leave(Reason.EVICTED), 0.0),
    ],
)
def test_an_action_takes_as_long_as_its_price_says(action: Action, expected_s: float) -> None:
    assert busy_seconds(action, COSTS) == expected_s


def test_a_push_without_a_price_takes_no_time() -> None:
    assert busy_seconds(TakeSnapshot(LEASE, 0, 10), replace(COSTS, push_s=None)) == 0.0
