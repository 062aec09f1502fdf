"""Policy for the number of workers: how many to submit, which to release, which are lost, when to stop submitting.

`Heartbeats` finds workers that are silent (no message, no heartbeat) or stuck (heartbeats, but no progress).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from gridml.carriers.base import Heartbeat
from gridml.errors import UNFIT, RunError, StorageError
from master.state.failures import GiveUpReason
from master.state.worker_records import LostWorker, WorkerRecord, WorkerStatus, WorkerTable

MIN_IDLE_JOBS = 10  # this many jobs may always wait, even in a pool that is unknown or starts none
RECENT_S = 60.0  # window for the rate of starts: a pool is expected to start as many jobs in the next window
SUBMIT_INTERVAL_S = (
    5.0  # minimum between two submissions, so that missing workers are submitted together, as one cluster
)
MAX_FAILED_STARTS = 5  # failed starts in a row before submission stops, if no other worker works
MAX_LEAVING_S = 600.0  # within this time any worker can push and leave
STUCK = 10  # a batch may take this many times --silence before its worker counts as stuck
MAX_UNFIT = 20  # unfit machines in a row before submission stops; many, because the next machine may be fit
MAX_DEATHS = 20  # workers that ended by themselves with nothing credited in between, before submission stops
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 300.0  # between submissions while starts fail; doubles each time
_MACHINE_STATUSES = frozenset((UNFIT, StorageError.exit_status, RunError.exit_status))  # the machine's fault


@dataclass(frozen=True)
class Queue:
    """A batch system's queue, and how fast jobs have left it recently."""

    idle: int  #: jobs of the run that wait
    most: int  #: the user's limit for `idle` (--max-idle)
    started: int = 0  #: jobs that began to run in the last `RECENT_S` seconds
    running: int = 0  #: jobs that run now
    wait_s: float | None = None  #: mean wait of a job; None: not known yet
    life_s: float | None = None  #: mean life of a job; None: not known yet
    quiet_s: float = math.inf  #: seconds since the last submission


def max_idle_jobs(queue: Queue) -> tuple[int, str]:
    """Return how many jobs may wait in a queue, and the reason: twice as many as the pool started recently.

    The limit doubles as long as the pool starts all jobs that wait. If the pool starts fewer, a job waits for
    2·`RECENT_S`, whatever the pool's speed; if it starts none, the limit falls back to `MIN_IDLE_JOBS`. The limit is
    never less than the number of workers that end while a job waits (Little's law, for waits of at most `RECENT_S`).
    So a new master, which has seen no starts yet, keeps up the number of workers that the last master reached.
    """
    replaced = 0
    if queue.wait_s is not None and queue.life_s:
        replaced = math.ceil(queue.running * min(1.0, min(queue.wait_s, RECENT_S) / queue.life_s))
    started = f"{queue.started} started in the last {RECENT_S:.0f} s"
    count, reason = max(
        (MIN_IDLE_JOBS, f"as in any pool; {started}"),
        (replaced, f"what of {queue.running} workers ends while a job waits; {started}"),
        (2 * queue.started, f"twice what started: {started}"),
        key=lambda choice: choice[0],
    )
    return (count, reason) if count <= queue.most else (queue.most, f"never more; {started}")


def workers_to_submit(alive: int, wanted: int, *, work_left: bool, queue: Queue | None = None) -> tuple[int, str]:
    """Return how many workers to submit so that `wanted` are queued or running, within the queue's limit."""
    if not work_left:
        return 0, "nothing is left to lease"
    missing, reason = max(0, wanted - alive), f"{alive} of {wanted} are queued or running"
    if queue is not None and missing:
        if queue.quiet_s < SUBMIT_INTERVAL_S:
            return 0, "what is missing is gathered"
        limit, why = max_idle_jobs(queue)
        if queue.idle + missing > limit:
            missing, reason = max(0, limit - queue.idle), f"{reason}; {queue.idle} are queued, {limit} may be: {why}"
    return missing, reason


@dataclass(frozen=True)
class PresentWorker:
    """A queued or running worker, as a candidate for release."""

    name: str
    waits: bool  #: queued, or held until a person acts
    speed: float | None = None  #: vertices per second; None: not known yet


def workers_to_release(present: Sequence[PresentWorker], wanted: int) -> tuple[list[str], str]:
    """Return the workers to release so that `wanted` stay, and the reason. `present` is ordered oldest first.

    Waiting workers are released first, then those that have trained nothing yet, then the slowest. Among equals the
    newest is released first.
    """
    surplus = max(0, len(present) - wanted)
    order = sorted(reversed(present), key=lambda worker: (not worker.waits, worker.speed or 0.0))
    return [worker.name for worker in order[:surplus]], f"{len(present)} are queued or running, wanted: {wanted}"


def release_time_s(began_s: float, longest_s: float) -> float:
    """Return the time to release a worker that began at `began_s`, so that it leaves before its job's limit
    `longest_s`: after 95% of the limit, or `MAX_LEAVING_S` before the limit if that is later."""
    return began_s + longest_s - min(0.05 * longest_s, MAX_LEAVING_S)


def silence_limit_s(limit_s: float, *, out_of_reach: bool) -> float:
    """Return how long a worker may be silent: a quarter of the limit if the back end cannot reach it either, because
    two independent signs then say that the worker is gone."""
    return limit_s / 4 if out_of_reach else limit_s


def is_silent(last_contact_s: float, now_s: float, limit_s: float, *, out_of_reach: bool = False) -> tuple[bool, str]:
    """Return whether a running worker has been silent too long, so that its leases are reassigned, and the reason."""
    silent, limit = now_s - last_contact_s, silence_limit_s(limit_s, out_of_reach=out_of_reach)
    where = ", and out of reach" if out_of_reach else ""
    return silent > limit, f"nothing heard for {silent:.0f} s (limit {limit:.0f} s){where}"


def is_suspended_long(since_s: float, now_s: float, limit_s: float) -> tuple[bool, str]:
    """Return whether a worker has been suspended too long, so that its leases are reassigned, and the reason. This
    counts neither against the worker nor against its machine."""
    still = now_s - since_s
    return still > limit_s, f"suspended for {still:.0f} s (limit {limit_s:.0f} s)"


def is_stuck(progress_s: float, now_s: float, limit_s: float) -> tuple[bool, str]:
    """Return whether a live worker has made no progress for so long that f counts as stuck in one batch (an endless
    loop or a deadlock), and the reason."""
    idle_s, limit = now_s - progress_s, STUCK * limit_s
    limits = f"limit {limit:.0f} s, {STUCK} times --silence"
    return idle_s > limit, f"its process lives, but it has trained nothing for {idle_s:.0f} s ({limits})"


class FailedStart(NamedTuple):
    """A worker that ended before it had any work."""

    machine: str
    status: int | None = None  #: exit status; None: not known
    words: str = ""  #: the last lines of its output

    @property
    def signature(self) -> str:
        """The output without the machine's name and with digits masked: equal for equal failures on two machines."""
        return re.sub(r"\d+", "0", self.words.replace(self.machine, "") if self.machine else self.words)


def judge_failed_starts(
    failed: Sequence[FailedStart], *, others_work: bool = False, any_reported: bool = False
) -> tuple[bool, str]:
    """Return whether to keep submitting, and the reason. `failed` are the last workers in a row that failed before
    their first sync, except those whose machine was taken away.

    If two machines fail with the same status and output, and no worker has ever sent a message (not `any_reported`),
    the fault is in the program or in the files sent with it. Statuses by which a worker blames its machine or
    connection are excepted.
    While others work, submission continues: one bad machine that kills job after job must not stop the rest.
    """
    last, unfit = failed[-1], sum(start.status == UNFIT for start in failed)
    if others_work:
        return True, f"{len(failed)} workers in a row had no work yet, others work"
    alike = {start.machine for start in failed if (start.status, start.signature) == (last.status, last.signature)}
    if (
        len(alike) > 1
        and not any_reported
        and last.words
        and last.status is not None
        and last.status not in _MACHINE_STATUSES
    ):
        return False, (
            f"{len(alike)} machines failed in the same way before any worker had work, so it is not the machines: the "
            f"program, or what is sent with it, has to be fixed"
        )
    if unfit >= MAX_UNFIT:
        return False, f"{unfit} workers in a row found that their machine lacks something that the program needs"
    if len(failed) - unfit < MAX_FAILED_STARTS:
        return True, f"{len(failed)} workers in a row had no work yet"
    return False, f"{len(failed) - unfit} workers in a row ended before they had any work"


@dataclass(frozen=True)
class Deaths:
    """Workers that ended by themselves (not by their machine) since something was last credited."""

    ways: tuple[tuple[str, int], ...] = ()  #: (signal or exit status, number of workers)
    longest_s: float = 0.0  #: the longest life of these workers

    @property
    def count(self) -> int:
        return sum(count for _, count in self.ways)

    def another(self, way: str, lived_s: float) -> Deaths:
        """Return these deaths and one more."""
        ways = {**dict(self.ways), way: dict(self.ways).get(way, 0) + 1}
        return Deaths(tuple(ways.items()), max(self.longest_s, lived_s))


def judge_deaths(deaths: Deaths, *, others_live_longer: bool) -> tuple[bool, str]:
    """Return whether to keep submitting after these deaths with nothing credited in between, and the reason.

    `others_live_longer`: a live worker is older than all of these were when they died. It has perhaps passed the point
    at which they died, so submission continues: one bad machine that kills job after job must not stop workers that
    are still at their first batch.
    """
    ways = ", ".join(f"{count} with {way}" for way, count in sorted(deaths.ways, key=lambda way: (-way[1], way[0])))
    reason = f"{deaths.count} workers ended by themselves, and nothing was credited in between: {ways}"
    return deaths.count < MAX_DEATHS or others_live_longer, reason


def submission_backoff(in_a_row: int, *, others_begin: bool) -> tuple[float, str]:
    """Return the seconds to wait before the next submission after `in_a_row` failed starts, while other workers work.
    `others_begin`: a worker that began after the first failed start has sent a message; then there is no wait."""
    if in_a_row < MAX_FAILED_STARTS or others_begin:
        return 0.0, "workers begin"
    wait_s = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0 ** min(in_a_row - MAX_FAILED_STARTS, 60))
    return wait_s, f"{in_a_row} workers in a row had no work yet; more are asked for in {wait_s:g} s"


MAX_STARTUP_S = 30.0  # time for a worker's first message, even if --silence is shorter
MAX_DOUBLINGS = 6  # doublings of --silence: two minutes become two hours


class Heartbeats:
    """Finds silent and stuck workers among those that run.

    `read` reads a worker's heartbeat, and `limit_s` is how long a worker may be silent. `doublings` returns how
    many times that limit is doubled for the range that a worker trains: on some ranges f holds the interpreter lock for
    long, which silences the heartbeat thread of every worker that trains such a range.

    A heap orders workers by the time of their next check, so that a call of `lost` visits only workers that are due.
    """

    def __init__(
        self,
        workers: WorkerTable,
        read: Callable[[str], Heartbeat | None],
        limit_s: float,
        doublings: Callable[[str], int] = lambda worker: 0,
    ) -> None:
        self._workers = workers
        self._read = read
        self._limit_s = limit_s
        self._doublings = doublings
        # Heap of (time of the next check, worker). An entry is stale if its time differs from the record's `check_s`.
        self._looks: list[tuple[float, str]] = []

    def watch(self, record: WorkerRecord, now: float) -> None:
        """Start watching a worker that was started or can be reached again."""
        record.signs.record_contact(now)
        record.signs.heartbeat = None
        self._plan(record)

    def lose_sight(self, record: WorkerRecord) -> None:
        """Shorten the limit of a running worker that the back end cannot reach."""
        if record.status is WorkerStatus.RUNNING:
            record.signs.out_of_reach = True
            self._plan(record)

    def lost(self, now: float) -> list[LostWorker]:
        """Return the workers to give up. In one silence, a worker's heartbeat is read at most twice, because each
        reading is a file access: half way through the limit, and at the limit, to compare the two."""
        lost, again = [], []
        while self._looks and self._looks[0][0] < now:
            check_s, name = heappop(self._looks)
            record = self._workers.get(name)
            if record is None or record.status is not WorkerStatus.RUNNING or record.signs.check_s != check_s:
                continue  # a stale entry: the worker has stopped, or another check was planned since
            again.append(record)
            signs = record.signs
            limit_s = self._limit(record)
            if now - signs.last_s <= silence_limit_s(limit_s, out_of_reach=signs.out_of_reach) / 2:
                continue  # a message came since this check was planned
            silent, reason = is_silent(signs.last_s, now, limit_s, out_of_reach=signs.out_of_reach)
            heartbeat = self._read(name) if silent or not signs.heartbeat_read else None
            if silent and heartbeat not in (None, signs.heartbeat):
                assert heartbeat is not None
                signs.record_heartbeat(heartbeat, now)
                stuck, reason = is_stuck(signs.progress_s, now, self._limit_s)
                if stuck:
                    lost.append(LostWorker(record, GiveUpReason.STUCK, reason))
            elif silent:
                lost.append(LostWorker(record, GiveUpReason.SILENCE, reason))
            elif not signs.heartbeat_read:  # half way: remember the heartbeat, to compare it with the one at the limit
                signs.heartbeat_read, signs.heartbeat = True, heartbeat
        for record in again:
            self._plan(record)
        return lost

    def _limit(self, record: WorkerRecord) -> float:
        """Return how long a worker may be silent; before its first message it has no heartbeat yet."""
        least_s = 0.0 if record.contact.has_reported else MAX_STARTUP_S
        return max(least_s, self._limit_s * 2.0 ** min(self._doublings(record.name), MAX_DOUBLINGS))

    def _plan(self, record: WorkerRecord) -> None:
        """Plan the next check of a worker: half way through its limit, then at the limit."""
        signs = record.signs
        patience = silence_limit_s(self._limit(record), out_of_reach=signs.out_of_reach)
        signs.check_s = signs.last_s + (patience if signs.heartbeat_read else patience / 2)
        heappush(self._looks, (signs.check_s, record.name))
