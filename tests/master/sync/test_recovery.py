"""Automatic rollback: several workers fail on a replica on which no worker succeeds."""

from __future__ import annotations

import pytest

from master.sync.recovery import MAX_ROLLBACKS, FailedOn, rollback_target

FIRST, SECOND = FailedOn("a", 0, 0, 57), FailedOn("b", 0, 100, 58)


def test_the_newest_version_before_the_first_that_fails_is_gone_back_to() -> None:
    to, reason = rollback_target([FIRST, SECOND], 56, [0, 40, 56, 57, 58], 0)
    assert to == 56
    assert reason == "a, b fail on version 57 or later, and no worker succeeds on one"


@pytest.mark.parametrize(
    ("failed", "succeeded_on", "kept", "times"),
    [
        ([], 56, [56], 0),
        ([FIRST], 56, [56], 0),  # one worker may be bad
        ([FIRST, FIRST], 56, [56], 0),
        ([FIRST, FailedOn("b", 0, 0, 58)], 56, [56], 0),  # the same vertices: f fails on them
        ([FIRST, FailedOn("a", 0, 100, 58)], 56, [56], 0),  # one worker on two ranges
        ([FIRST, SECOND], 57, [56], 0),  # a worker succeeded on it
        ([FIRST, SECOND], 58, [56], 0),
        ([FIRST, SECOND], None, [56], 0),  # no success yet: the program may always fail
        ([FIRST, SECOND], 56, [57, 58], 0),
        ([FIRST, SECOND], 56, [56], MAX_ROLLBACKS),
    ],
)
def test_otherwise_it_goes_on_as_it_is(
    failed: list[FailedOn], succeeded_on: int | None, kept: list[int], times: int
) -> None:
    assert rollback_target(failed, succeeded_on, kept, times)[0] is None
