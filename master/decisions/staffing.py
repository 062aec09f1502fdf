"""How many workers to ask for and to let go, when one counts as lost, and when there is no use in asking for more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_WAITING = 10  # jobs that may wait in a pool of which nothing is known, and in one that starts none
LATELY_S = 60.0  # what a pool started in so long it is taken to start again in so long
GATHER_S = 5.0  # between two submissions to a queue: what is missing meanwhile is submitted together
MAX_HELD = 3  # jobs on hold before any worker has spoken
MAX_FAILED_STARTS = 5  # workers in a row that end and had no work yet, while no other works
STUCK = 10  # silences that a batch may last
MAX_UNFIT = 20  # the same, of machines that lack something, while some other might not


@dataclass(frozen=True)
class Queue:
    """A pool's queue, and how jobs have left it of late. `idle` jobs of the run wait in it, and never more than `most`
    may; `started` began to run within the last `LATELY_S` seconds. `running` run, and end after `life_s` seconds on
    average; a job waits for `wait_s` on average. None: not known yet. The last submission was `quiet_s` seconds ago."""

    idle: int
    most: int
    started: int = 0
    running: int = 0
    wait_s: float | None = None
    life_s: float | None = None
    quiet_s: float = math.inf


def may_wait(queue: Queue) -> tuple[int, str]:
    """Jobs that may wait in a queue, and why: twice what the pool started of late.

    That doubles as long as the pool takes all that waits, at once or one by one. Where it takes fewer, a job waits for
    2·`LATELY_S`, however fast or slow the pool is; where it takes none, `FIRST_WAITING` is all again. As many as end
    while one waits (Little's law, over at most `LATELY_S`) may wait in any case, so a new master keeps up what an
    earlier one has reached.
    """
    replaced = 0
    if queue.wait_s is not None and queue.life_s:
        replaced = math.ceil(queue.running * min(1.0, min(queue.wait_s, LATELY_S) / queue.life_s))
    started = f"{queue.started} started in the last {LATELY_S:.0f} s"
    count, reason = max(
        (FIRST_WAITING, f"as in any pool; {started}"),
        (replaced, f"what of {queue.running} workers ends while a job waits; {started}"),
        (2 * queue.started, f"twice what started: {started}"),
        key=lambda choice: choice[0],
    )
    return (count, reason) if count <= queue.most else (queue.most, f"never more; {started}")


def to_submit(alive: int, wanted: int, *, work_left: bool, queue: Queue | None = None) -> tuple[int, str]:
    """Workers to submit now, so that `wanted` are queued or running; no more wait in a `queue` than may."""
    if not work_left:
        return 0, "nothing is left to lease"
    missing, reason = max(0, wanted - alive), f"{alive} of {wanted} are queued or running"
    if queue is not None and missing:
        if queue.quiet_s < GATHER_S:
            return 0, "what is missing is gathered"
        limit, why = may_wait(queue)
        if queue.idle + missing > limit:
            missing, reason = max(0, limit - queue.idle), f"{reason}; {queue.idle} are queued, {limit} may be: {why}"
    return missing, reason


@dataclass(frozen=True)
class Presence:
    """A worker that may be told to leave: whether it `waits` (in the queue, or for a person), and how many vertices it
    trains per second, None: not known yet."""

    name: str
    waits: bool
    speed: float | None = None


def to_dismiss(present: Sequence[Presence], wanted: int) -> tuple[list[str], str]:
    """Workers to tell to leave, so that `wanted` of those that are `present`, the oldest first, stay: first those that
    wait, then those that have trained nothing yet, then the slowest; of equals the newest."""
    surplus = max(0, len(present) - wanted)
    order = sorted(reversed(present), key=lambda worker: (not worker.waits, worker.speed or 0.0))
    return [worker.name for worker in order[:surplus]], f"{len(present)} are queued or running, wanted: {wanted}"


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
