"""The decision to remove the leftovers of a run."""

from __future__ import annotations

import pytest

from master.backends.ec2.cleanup import RunRemains, may_be_swept


@pytest.mark.parametrize(
    ("remains", "named", "older_than_s", "swept", "why"),
    [
        (RunRemains("r", "here", True, None, 10.0), False, 0.0, True, "no master"),
        (RunRemains("r", "here", True, "pid 7", 1e6), True, 0.0, False, "pid 7"),
        (RunRemains("r", "there", False, None, 1e6), False, 0.0, False, "seen on there only"),
        (RunRemains("r", "there", False, None, 1e6), True, 0.0, True, "named"),
        (RunRemains("r", "here", True, None, 10.0), True, 3600.0, False, "10 s old"),
        (RunRemains("r", "here", True, None, None), False, 3600.0, True, "no master"),
    ],
)
def test_may_be_swept(remains: RunRemains, named: bool, older_than_s: float, swept: bool, why: str) -> None:
    decided, reason = may_be_swept(remains, named=named, older_than_s=older_than_s)
    assert decided is swept and why in reason
