"""How many workers to ask for, when one counts as lost, and when there is no use in asking for more."""

from __future__ import annotations

MAX_HELD = 3  # jobs on hold before any worker has spoken
MAX_FAILED_STARTS = 5  # workers in a row that end and had no work yet, while no other works
STUCK = 10  # silences that a batch may last
MAX_UNFIT = 20  # the same, of machines that lack something, while some other might not


def to_submit(
    alive: int, wanted: int, *, work_left: bool, idle: int = 0, max_idle: int | None = None
) -> tuple[int, str]:
    """Workers to submit now, so that `wanted` are queued or running, of which at most `max_idle` are queued."""
    if not work_left:
        return 0, "nothing is left to lease"
    missing = max(0, wanted - alive)
    if max_idle is not None and idle + missing > max_idle:
        return max(0, max_idle - idle), f"{idle} are queued, and no more than {max_idle} may be"
    return missing, f"{alive} of {wanted} are queued or running"


def after_hold(held: int, reason: str, *, spoken: bool, alive: int) -> tuple[bool, str]:
    """Whether to go on with `held` jobs on hold and `alive` others; when a worker has `spoken`, they can be mended."""
    if not spoken and (held >= MAX_HELD or not alive):
        return False, f"{held} jobs were put on hold and none has ever run: {reason}"
    return True, f"{held} jobs are on hold: {reason}"


def patience_s(limit_s: float, *, out_of_reach: bool) -> float:
    """How long a worker may be silent. One that the back end has lost sight of gets a quarter of the time: both ways to
    it are cut."""
    return limit_s / 4 if out_of_reach else limit_s


def is_silent(last_heard_s: float, now_s: float, limit_s: float, *, out_of_reach: bool = False) -> tuple[bool, str]:
    """Whether a running worker has been silent for so long that its leases are given to others."""
    silent, limit = now_s - last_heard_s, patience_s(limit_s, out_of_reach=out_of_reach)
    where = ", and out of reach" if out_of_reach else ""
    return silent > limit, f"nothing heard for {silent:.0f} s (limit {limit:.0f} s){where}"


def is_stuck(headway_s: float, now_s: float, limit_s: float) -> tuple[bool, str]:
    """Whether a worker whose process lives has made no headway for so long that f is taken to be stuck: in the endless
    loop or the deadlock of one batch."""
    idle_s, limit = now_s - headway_s, STUCK * limit_s
    limits = f"limit {limit:.0f} s, {STUCK} times --silence"
    return idle_s > limit, f"its process lives, but it has trained nothing for {idle_s:.0f} s ({limits})"


def after_failed_start(in_a_row: int, unfit: int = 0, *, others_work: bool = False) -> tuple[bool, str]:
    """Whether to go on submitting after `in_a_row` workers ended before their first sync, or crashed at nothing, and
    not because their machine was taken; `unfit` of them because it lacks something. While others work, one bad machine
    that eats job after job, or messages that were lost together, must not stop them."""
    if unfit >= MAX_UNFIT:
        return False, f"{unfit} machines in a row lack something that the program needs"
    if in_a_row - unfit < MAX_FAILED_STARTS or others_work:
        return True, f"{in_a_row} workers in a row had no work yet"
    return False, f"{in_a_row - unfit} workers in a row ended before they had any work"
