"""Time limits of jobs, as read from their ads."""

from __future__ import annotations

from typing import Any

import pytest

from master.backends.condor.holds import longest_s


@pytest.mark.parametrize(
    ("ad", "job_hours", "expected"),
    [
        ({}, 0.0, None),
        ({}, 2.5, 9000.0),
        ({"JobDurationCategory": "Medium"}, 0.0, 72_000.0),
        ({"JobDurationCategory": "LONG"}, 0.0, 144_000.0),
        ({"JobDurationCategory": "Long"}, 10.0, 36_000.0),
        ({"JobDurationCategory": "Short"}, 0.0, None),
        ({"JobDurationCategory": "Long", "AllowedExecuteDuration": 600}, 0.0, 600.0),
        ({"AllowedJobDuration": 300, "AllowedExecuteDuration": 600}, 0.0, 300.0),
        ({"AllowedJobDuration": 300}, 1.0, 300.0),
        ({"AllowedJobDuration": "an expression", "JobDurationCategory": 7}, 0.0, None),
        ({"AllowedJobDuration": 0}, 0.0, None),
    ],
)
def test_the_shortest_limit_counts(ad: dict[str, Any], job_hours: float, expected: float | None) -> None:
    assert longest_s(ad, job_hours) == expected
