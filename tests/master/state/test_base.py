"""Events of jobs name the host of their slot."""

from __future__ import annotations

import pytest

from master.state.jobs import JobEvent, State


@pytest.mark.parametrize(
    ("machine", "host"), [("slot-2", "slot-2"), ("slot1_3@node7.example.org", "node7.example.org"), ("", "")]
)
def test_slots_of_a_host_fail_together(machine: str, host: str) -> None:
    assert JobEvent(0.0, "w1", State.RUNNING, machine).host == host
