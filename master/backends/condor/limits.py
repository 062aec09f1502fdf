"""How long a job may run before its pool ends or holds it, as its ad says after the schedd has taken it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("AllowedExecuteDuration", "AllowedJobDuration", "JobDurationCategory")
CATEGORY_HOURS = {"medium": 20.0, "long": 40.0}
"""What a job of a category may run at most on the OSPool (its documentation, "Indicate the Duration Category of Your
Jobs"), whose access points give each job one."""


def longest_s(ad: Mapping[str, Any], job_hours: float) -> float | None:
    """Return the seconds that one attempt of a job may run, None where nothing says so. `job_hours` is what the user
    says, 0: nothing."""
    limits = [float(ad[name]) for name in COLUMNS[:2] if isinstance(ad.get(name), int | float)]
    category = ad.get(COLUMNS[2])
    hours = CATEGORY_HOURS.get(category.lower()) if isinstance(category, str) else None
    limits += [3600.0 * limit for limit in (hours, job_hours) if limit]
    return min((limit for limit in limits if limit > 0), default=None)
