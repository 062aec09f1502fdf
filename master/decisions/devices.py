"""What becomes of a machine whose device failed under a worker (a GPU error, or its memory ran out), and of the run.

The vertices are not to blame, so nothing counts against their range. Nor can a device that fails be told from a program
that fails on every device at once: so others try, and where nobody does better the run ends with the device's words.
"""

from __future__ import annotations

REST_S, LONGEST_REST_S = 5.0, 3600.0  # without a worker on a machine whose device failed, doubled by each in a row
MAX_TRIES = 3  # devices that fail one after the other while nothing is credited and nobody else works


def rest_of_device(times: int) -> tuple[float, str]:
    """Seconds without a worker for a machine whose device failed so many times in a row, and why: memory that others
    hold is given back soon, and a GPU that has fallen off its bus is not mended within the hour."""
    seconds = min(LONGEST_REST_S, REST_S * 2.0 ** min(max(times, 1) - 1, 60))
    often = "failed" if times <= 1 else f"failed {times} times in a row"
    return seconds, f"its device {often}; no worker there for {seconds:g} s"


def after_device_failure(in_a_row: int, *, others_work: bool) -> tuple[bool, str]:
    """Whether a run goes on when the devices of so many workers have failed one after the other, with nothing credited
    in between. `others_work` says whether anybody else trains meanwhile."""
    if others_work:
        return True, "others train meanwhile"
    if in_a_row < MAX_TRIES:
        return True, f"{in_a_row} of {MAX_TRIES} tries failed"
    return False, f"the devices of {in_a_row} workers failed one after the other, and nothing was credited in between"
