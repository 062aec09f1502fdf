"""A worker determines which attempt of its job it is from the mailboxes that the master has opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from master.simulation.faulty_network import VirtualClock
from remote.worker import PATIENCE_S, POLL_S, find_mailbox


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["w7"], "w7"),
        (["w1", "w7", "w7.1", "w77"], "w7.1"),
        (["w7.9", "w7.10"], "w7.10"),
        ([".", "..", ".w7.11", "w7.2"], "w7.2"),
    ],
)
def test_the_newest_open_mailbox_is_ours(names: list[str], newest: str) -> None:
    assert find_mailbox("w7", lambda: names) == newest


def test_one_that_turned_out_to_be_another_attempts_is_passed_over() -> None:
    assert find_mailbox("w7", lambda: ["w7", "w7.1"], but="w7.1") == "w7"


def test_a_mailbox_that_is_opened_late_is_waited_for() -> None:
    looks: Iterator[list[str]] = iter([[], ["w7"], ["w7", "w7.1"]])
    rested: list[float] = []
    assert find_mailbox("w7", lambda: next(looks), but="w7", rest=rested.append) == "w7.1"
    assert rested == [POLL_S, POLL_S]


def test_a_submit_host_out_of_reach_is_asked_again_and_given_up_in_the_end() -> None:
    clock = VirtualClock()

    def unreachable() -> list[str]:
        raise OSError("out of reach")

    assert find_mailbox("w7", unreachable, clock=clock, rest=clock.sleep) is None
    assert clock() >= PATIENCE_S
