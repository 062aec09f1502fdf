"""The policy for the number of workers: how many to ask for, which to release and when, and which count as lost.

It also decides when more workers are of no use. A worker's heartbeat shows that it still lives and still trains;
`Heartbeats` says when to look at a worker that is silent.

How many workers a run is long enough for: what workers have trained separately is averaged, and an average is no
deeper than one of them has trained. Of two runs over the same vertices the one with more workers moves less far,
however often they push (`docs/averaging.md`). So the number of steps that each takes is what counts. Where these
are too few, more workers end a run sooner, and with a worse model.
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
from master.state.failures import GivenUpFor
from master.state.worker_records import Lost, Standing, WorkerRecord, WorkerTable
from master.store.settings import STEPS_EACH

MIN_IDLE_JOBS = 10  # jobs that may wait in a pool of which nothing is known, and in one that starts none
RECENT_S = 60.0  # what a pool started in so long it is taken to start again in so long
SUBMIT_INTERVAL_S = 5.0  # between two submissions to a queue: what is missing meanwhile is submitted together
MAX_FAILED_STARTS = 5  # workers in a row that end and had no work yet, while no other works
MAX_LEAVING_S = 600.0  # within which a worker surely pushes and leaves
STUCK = 10  # silences that a batch may last
MAX_UNFIT = 20  # workers in a row whose machines lack something: some other might not
MAX_DEATHS = 20  # workers that end by themselves, at whatever, with nothing credited in between
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 300.0  # before more are asked for while one after the other ends; it doubles
_MACHINE_STATUSES = frozenset((UNFIT, StorageError.exit_status, RunError.exit_status))  # by status, not of the program


@dataclass(frozen=True)
class Queue:
    """A pool's queue, and how jobs have left it of late. `idle` jobs of the run wait in it, and never more than `most`
    may; `started` began to run within the last `RECENT_S` seconds. `running` run, and end after `life_s` seconds on
    average; a job waits for `wait_s` on average. None: not known yet. The last submission was `quiet_s` seconds ago."""

    idle: int
    most: int
    started: int = 0
    running: int = 0
    wait_s: float | None = None
    life_s: float | None = None
    quiet_s: float = math.inf


def max_idle_jobs(queue: Queue) -> tuple[int, str]:
    """Jobs that may wait in a queue, and why: twice what the pool started of late.

    That doubles as long as the pool takes all that waits, at once or one by one. Where it takes fewer, a job waits for
    2·`RECENT_S`, however fast or slow the pool is; where it takes none, `MIN_IDLE_JOBS` is all again. As many as end
    while one waits (Little's law, over at most `RECENT_S`) may wait in any case, so a new master keeps up what an
    earlier one has reached.
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
    """Workers to submit now, so that `wanted` are queued or running; no more wait in a `queue` than may."""
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
    """A worker that may be told to leave: whether it `waits` (in the queue, or for a person), and how many vertices it
    trains per second, None: not known yet."""

    name: str
    waits: bool
    speed: float | None = None


def workers_to_release(present: Sequence[PresentWorker], wanted: int) -> tuple[list[str], str]:
    """Workers to tell to leave, so that `wanted` of those that are `present`, the oldest first, stay: first those that
    wait, then those that have trained nothing yet, then the slowest; of equals the newest."""
    surplus = max(0, len(present) - wanted)
    order = sorted(reversed(present), key=lambda worker: (not worker.waits, worker.speed or 0.0))
    return [worker.name for worker in order[:surplus]], f"{len(present)} are queued or running, wanted: {wanted}"


def release_time_s(began_s: float, longest_s: float) -> float:
    """When a worker that began to run at `began_s` is told to leave, so that it has pushed and left before its job has
    run for `longest_s`: after 95% of that, but with no more time to spare than `MAX_LEAVING_S`."""
    return began_s + longest_s - min(0.05 * longest_s, MAX_LEAVING_S)


def silence_limit_s(limit_s: float, *, out_of_reach: bool) -> float:
    """How long a worker may be silent. One that the back end has lost sight of gets a quarter of the time: both ways to
    it are cut."""
    return limit_s / 4 if out_of_reach else limit_s


def is_silent(last_contact_s: float, now_s: float, limit_s: float, *, out_of_reach: bool = False) -> tuple[bool, str]:
    """Whether a running worker has been silent for so long that its leases are given to others."""
    silent, limit = now_s - last_contact_s, silence_limit_s(limit_s, out_of_reach=out_of_reach)
    where = ", and out of reach" if out_of_reach else ""
    return silent > limit, f"nothing heard for {silent:.0f} s (limit {limit:.0f} s){where}"


def is_suspended_long(since_s: float, now_s: float, limit_s: float) -> tuple[bool, str]:
    """Whether a suspended worker has stood still for so long that its leases are given to others. Nothing is wrong with
    it, nor with its machine."""
    still = now_s - since_s
    return still > limit_s, f"suspended for {still:.0f} s (limit {limit_s:.0f} s)"


def is_stuck(headway_s: float, now_s: float, limit_s: float) -> tuple[bool, str]:
    """Whether a worker whose process lives has made no headway for so long that f is taken to be stuck: in the endless
    loop or the deadlock of one batch."""
    idle_s, limit = now_s - headway_s, STUCK * limit_s
    limits = f"limit {limit:.0f} s, {STUCK} times --silence"
    return idle_s > limit, f"its process lives, but it has trained nothing for {idle_s:.0f} s ({limits})"


class FailedStart(NamedTuple):
    """How a worker ended before it had any work: on which machine, with which exit status (None: it is not known) and
    which last words."""

    machine: str
    status: int | None = None
    words: str = ""

    @property
    def signature(self) -> str:
        """What its words have in common with those of another machine that failed in the same way."""
        return re.sub(r"\d+", "0", self.words.replace(self.machine, "") if self.machine else self.words)


def judge_failed_starts(
    failed: Sequence[FailedStart], *, others_work: bool = False, any_spoke: bool = False
) -> tuple[bool, str]:
    """Whether to go on submitting after workers in a row `failed` so before their first sync, or crashed at nothing,
    and not because their machine was taken.

    What fails in the same words on two machines, while `any_spoke` is false, is the program or what was sent with it;
    a worker's own judgement of its machine or of the way to its master excepted. While others work, one bad machine
    that eats job after job, or messages that were lost together, must not stop them.
    """
    last, unfit = failed[-1], sum(start.status == UNFIT for start in failed)
    if others_work:
        return True, f"{len(failed)} workers in a row had no work yet, others work"
    alike = {start.machine for start in failed if (start.status, start.signature) == (last.status, last.signature)}
    if (
        len(alike) > 1
        and not any_spoke
        and last.words
        and last.status is not None
        and last.status not in _MACHINE_STATUSES
    ):
        return False, (
            f"{len(alike)} machines failed in the same way before any worker had work, so it is not the machines: the "
            f"program, or what is sent with it, is to be mended"
        )
    if unfit >= MAX_UNFIT:
        return False, f"{unfit} workers in a row found that their machine lacks something that the program needs"
    if len(failed) - unfit < MAX_FAILED_STARTS:
        return True, f"{len(failed)} workers in a row had no work yet"
    return False, f"{len(failed) - unfit} workers in a row ended before they had any work"


@dataclass(frozen=True)
class Deaths:
    """Workers that ended by themselves, and not because their machine was taken, since anything was credited: how many
    in which `ways` (a signal, an exit status), and how long the longest of them lived."""

    ways: tuple[tuple[str, int], ...] = ()
    longest_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(count for _, count in self.ways)

    def another(self, way: str, lived_s: float) -> Deaths:
        """Return these and one more."""
        ways = {**dict(self.ways), way: dict(self.ways).get(way, 0) + 1}
        return Deaths(tuple(ways.items()), max(self.longest_s, lived_s))


def judge_deaths(deaths: Deaths, *, others_live_longer: bool) -> tuple[bool, str]:
    """Whether to go on submitting after so many workers have ended by themselves and nothing was credited in between.

    Whoever works and has lived longer than all of them may be past what they died of: one bad machine that eats job
    after job must not stop those that are at their first batch.
    """
    ways = ", ".join(f"{count} with {way}" for way, count in sorted(deaths.ways, key=lambda way: (-way[1], way[0])))
    reason = f"{deaths.count} workers ended by themselves, and nothing was credited in between: {ways}"
    return deaths.count < MAX_DEATHS or others_live_longer, reason


def submission_backoff(in_a_row: int, *, others_begin: bool) -> tuple[float, str]:
    """Seconds to wait before more workers are asked for when so many in a row had no work yet, though others work:
    none where one that began after the first of them has spoken since."""
    if in_a_row < MAX_FAILED_STARTS or others_begin:
        return 0.0, "workers begin"
    wait_s = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0 ** min(in_a_row - MAX_FAILED_STARTS, 60))
    return wait_s, f"{in_a_row} workers in a row had no work yet; more are asked for in {wait_s:g} s"


MAX_STARTUP_S = 30.0  # that a worker may take to say its first word, however short a silence is asked for
MAX_DOUBLINGS = 6  # of the silence that is borne: two hours, of the usual two minutes


class Heartbeats:
    """Finds the silent ones and the stuck ones among the workers that run. `read` reads the heartbeat of one; `limit_s`
    is how long it may be silent, and `doublings` how often that is doubled for the range it trains: f may hold Python's
    lock for long there, so that whoever gets it falls silent.

    Whom to look at when is kept in a heap, so that a turn costs those that are nearly silent, and not everybody.
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
        self._looks: list[tuple[float, str]] = []  # (when it could be silent for half the limit, who)

    def watch(self, record: WorkerRecord, now: float) -> None:
        """Begin to watch a worker that was started, or is in reach again."""
        record.signs.show(now)
        record.signs.heartbeat = None
        self._plan(record)

    def lose_sight(self, record: WorkerRecord) -> None:
        """Be less patient with a running worker that the back end has lost sight of."""
        if record.standing is Standing.RUNNING:
            record.signs.out_of_reach = True
            self._plan(record)

    def lost(self, now: float) -> list[Lost]:
        """Return those to give up. A heartbeat is read twice at most while a worker says nothing for as long as it may
        be silent: half way through that, to know what to compare with, and at its end."""
        lost, again = [], []
        while self._looks and self._looks[0][0] < now:
            look_s, name = heappop(self._looks)
            record = self._workers.get(name)
            if record is None or record.standing is not Standing.RUNNING or record.signs.look_s != look_s:
                continue  # it runs no more, or another look was planned since
            again.append(record)
            signs = record.signs
            limit_s = self._limit(record)
            if now - signs.last_s <= silence_limit_s(limit_s, out_of_reach=signs.out_of_reach) / 2:
                continue  # it was heard since
            silent, reason = is_silent(signs.last_s, now, limit_s, out_of_reach=signs.out_of_reach)
            heartbeat = self._read(name) if silent or not signs.heartbeat_read else None
            if silent and heartbeat not in (None, signs.heartbeat):
                assert heartbeat is not None
                signs.show_heartbeat(heartbeat, now)
                stuck, reason = is_stuck(signs.headway_s, now, self._limit_s)
                if stuck:
                    lost.append(Lost(record, GivenUpFor.NO_HEADWAY, reason))
            elif silent:
                lost.append(Lost(record, GivenUpFor.SILENCE, reason))
            elif not signs.heartbeat_read:
                signs.heartbeat_read, signs.heartbeat = True, heartbeat
        for record in again:
            self._plan(record)
        return lost

    def _limit(self, record: WorkerRecord) -> float:
        """How long a worker may be silent; while it starts it has no heartbeat yet."""
        least_s = 0.0 if record.contact.spoke else MAX_STARTUP_S
        return max(least_s, self._limit_s * 2.0 ** min(self._doublings(record.name), MAX_DOUBLINGS))

    def _plan(self, record: WorkerRecord) -> None:
        """Plan the next look at a worker: half way to its being silent, then at its end."""
        signs = record.signs
        patience = silence_limit_s(self._limit(record), out_of_reach=signs.out_of_reach)
        signs.look_s = signs.last_s + (patience if signs.heartbeat_read else patience / 2)
        heappush(self._looks, (signs.look_s, record.name))


MIN_WORKERS = (
    4  # workers are never too many: batches of a quarter give back what four of them lose (`gridml.engine.pace`)
)


@dataclass(frozen=True)
class RunLength:
    """How long a run is: `vertices` of all its epochs, in batches of `batch`. A worker is to train `steps_each` of
    these at least, 0: any number."""

    vertices: int
    batch: int
    steps_each: int = STEPS_EACH


def worker_limit(length: RunLength) -> tuple[int | None, str]:
    """Return how many workers a run is long enough for, and why; None for any number."""
    if length.steps_each < 1:
        return None, "however little each trains"
    count = max(MIN_WORKERS, length.vertices // (length.batch * length.steps_each))
    return count, (
        f"{length.vertices:,} vertices are {length.vertices // length.batch:,} batches of {length.batch:,}, and of "
        f"more than {count:,} workers each would train fewer than {length.steps_each:,}"
    )
