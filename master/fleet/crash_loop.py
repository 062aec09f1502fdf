"""Crash loops: detects that replacing workers is useless, because they crash, are held, or lose their devices.

Each class counts ends of one kind in a row, and asks a pure function whether the run should stop.

`Headway` names the cause if nothing is credited for long. It never stops a run, because a pool may get better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gridml.errors import RunError
from gridml.protocol.outbox import job_of
from master.leases.sizing import span
from master.state.failures import AVOID_AFTER, after_device_failure
from master.state.jobs import Backend, HeldFor, Hold, JobEvent, Remedy, State, after_hold, in_words
from master.state.worker_records import WorkerRecord, WorkerStatus, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.reader import NO_HEADWAY
from master.store.rundir import command
from master.sync.recovery import Failures
from master.telemetry.measures import Measures
from master.telemetry.staffing import Deaths, FailedStart, judge_deaths, judge_failed_starts, submission_backoff

MAX_REMEMBERED_STARTS = 100  # failed starts in a row that are kept, so that an endless loop does not fill memory


class CrashLoop:
    """Counts failed starts in a row, and deaths since the last credit. A failed start is a worker that ended before it
    had any work."""

    def __init__(self, workers: WorkerTable, ledger: Ledger) -> None:
        self._workers = workers
        self._ledger = ledger
        self._failed_starts: list[FailedStart] = []  # in a row; cleared when a worker gets work
        self._failing_since_s = self._failed_s = 0.0  # times of the first and of the last failed start
        self._deaths, self._credited = Deaths(), ledger.credited  # deaths since the credited count was `_credited`

    def reset(self) -> None:
        """Clear the failed starts, because a worker had work."""
        self._failed_starts.clear()

    def record_failed_start(
        self, record: WorkerRecord, event: JobEvent, line: str, now: float, *, any_reported: bool
    ) -> str | None:
        """Count a worker that ended before it had any work; return the reason to stop the run, None to continue. `line`
        is the last line of its output; `any_reported` says that some worker of the run has sent a message."""
        if not self._failed_starts:
            self._failing_since_s = now
        self._failed_s = now
        start = FailedStart(record.machine, event.exit_code, line)
        self._failed_starts = [*self._failed_starts[1 - MAX_REMEMBERED_STARTS :], start]
        others_work = any(other.is_present and self._may_work(other) for other in self._workers)
        again, reason = judge_failed_starts(self._failed_starts, others_work=others_work, any_reported=any_reported)
        return None if again else reason

    def record_death(self, event: JobEvent, lived_s: float, now: float) -> str | None:
        """Count a worker that ended by itself; return the reason to stop the run, None to continue."""
        if self._ledger.credited != self._credited:
            self._deaths, self._credited = Deaths(), self._ledger.credited
        ending = event.state.value if event.exit_code is None else in_words(event.exit_code)
        way = "their jobs removed" if event.removed else ending
        self._deaths = self._deaths.another(way, lived_s)
        running = (other for other in self._workers if other.status is WorkerStatus.RUNNING)
        longer = is_any_older(running, self._deaths.longest_s, now)
        again, reason = judge_deaths(self._deaths, others_live_longer=longer)
        return None if again else reason

    @property
    def next_submission_s(self) -> float:
        """Time from which workers can be submitted."""
        if not self._failed_starts:  # the usual case; asked at every turn, so avoid a pass over all workers
            return self._failed_s
        connected = (other for other in self._workers if other.contact.has_reported)
        others_begin = any((other.measured.started_s or 0.0) > self._failing_since_s for other in connected)
        return self._failed_s + submission_backoff(len(self._failed_starts), others_begin=others_begin)[0]

    def _may_work(self, record: WorkerRecord) -> bool:
        """Return whether a worker has reported, or may still report because it ran before the failed starts began.

        A bad machine can fail several jobs in the time in which a good machine imports the program's modules.
        """
        if record.contact.has_reported or record.measured.started_s is None:
            return record.contact.has_reported
        begun = record.status in (WorkerStatus.RUNNING, WorkerStatus.SUSPENDED)
        return begun and record.measured.started_s < self._failing_since_s


class HeldJobs:
    """Decides about held jobs, and releases them when their pause is over."""

    def __init__(self, backend: Backend, workers: WorkerTable, ledger: Ledger) -> None:
        self._backend = backend
        self._workers = workers
        self._ledger = ledger
        self._released: Counter[str] = Counter()  # releases by job, over all attempts (`w7`, `w7.1`, ...)
        self._due_s: dict[str, float] = {}  # times of planned releases, by worker
        # Number of holds since the credited count was `_credited`. Holds by a person do not count.
        self._without_credit, self._credited = 0, -1

    def handle(self, record: WorkerRecord, event: JobEvent, now: float, *, any_reported: bool) -> tuple[Remedy, str]:
        """Return the remedy for a hold, and the reason. A release is only planned: `release_due` does it."""
        if self._ledger.credited != self._credited:
            self._credited, self._without_credit = self._ledger.credited, 0
        self._without_credit += event.held_for is not HeldFor.PERSON
        self._due_s.pop(record.name, None)  # a new hold means that someone else has released the job
        job = job_of(record.name)
        hold = Hold(
            event.held_for,
            event.detail,
            released=self._released[job],
            without_credit=self._without_credit,
            held=self._workers.count(WorkerStatus.HELD),
            alive=self._workers.alive + self._workers.count(WorkerStatus.SUSPENDED),
            target=self._workers.target,
            any_reported=any_reported,
        )
        remedy, after_s, reason = after_hold(hold)
        if remedy is Remedy.RELEASE:
            self._released[job] += 1
            self._due_s[record.name] = now + after_s
        return remedy, reason

    def release_due(self, now: float) -> None:
        """Release the jobs whose pause is over."""
        for worker in [worker for worker, due_s in self._due_s.items() if due_s <= now]:
            del self._due_s[worker]
            self._backend.release(worker)


class DeviceFailures:
    """Counts failures of devices in the whole run. `count` must be called inside the ledger's transaction."""

    def __init__(self, workers: WorkerTable, ledger: Ledger, failures: Failures, events: Events) -> None:
        self._workers = workers
        self._ledger = ledger
        self._failures = failures
        self._events = events
        self._in_a_row, self._credited = 0, ledger.credited  # failures since the credited count was `_credited`

    def count(self, record: WorkerRecord, line: str, now: float) -> RunError | None:
        """Count a worker that exited because its device failed; return the error that stops the run, None to continue.
        `line` is the last line of its output."""
        if self._ledger.credited != self._credited:
            self._in_a_row, self._credited = 0, self._ledger.credited
        self._in_a_row += 1
        others_work = any(other is not record and other.is_present for other in self._workers.succeeding())
        again, reason = after_device_failure(self._in_a_row, others_work=others_work)
        facts = {"worker": record.name, "machine": record.machine, "in_a_row": self._in_a_row}
        self._events.record("device", facts, f"{record.name}: {line}")
        self._failures.count(record, line, now, device=True)
        if again:
            return None
        resume = command("resume", self._ledger.path.parent)
        return RunError(f"{reason}. The last one said: {line} Fix that, then go on from the last credit: {resume}")


class Stall(StrEnum):
    """The cause why nothing is credited, as `gridml status --json` prints it."""

    NO_MACHINE = "no machine"
    AVOIDED = "avoided"
    REFUSED = "refused"
    FAILURE = "failure"
    CRASH = "crash"
    GIVEN_UP = "given up"
    START = "start"
    FIRST_CREDIT = "first credit"


_LIVES = "{lives} workers in a row ended and brought no credit, {count} of them "
_BOOT = ": they lived {life} on average, and {boot}"
_REASONS = {  # (reason, advice)
    Stall.NO_MACHINE: ("no worker has run for {unstaffed}: {last}", "Ask the pool which machines fit the jobs"),
    Stall.AVOIDED: ("all {count} workers that run failed, and get no lease for a while: {last}", "Fix that"),
    Stall.REFUSED: ("{count} pushes were refused, the last one because {last}", "See set-aside/ in the run directory"),
    Stall.FAILURE: ("the program failed {count} times, the last time with: {last}", "Fix it, then gridml resume"),
    Stall.CRASH: (_LIVES + "by themselves. The last one is {last}", "Its log is in logs/ of the run directory"),
    Stall.GIVEN_UP: (_LIVES + "given up. The last one is {last}", "Its log is in logs/ of the run directory"),
    Stall.START: (_LIVES + "before their first message" + _BOOT, "{longer}"),
    Stall.FIRST_CREDIT: (_LIVES + "after their first message" + _BOOT, "{longer}, or a smaller --chunk or batch"),
}
_ENDS = (Stall.CRASH, Stall.GIVEN_UP, Stall.START, Stall.FIRST_CREDIT)  # ends of lives without a credit
# A life is a worker from its start to its end. If every n-th life brings a credit, 10·n lives in a row bring none with
# a probability of at most 5e-5.
LIVES_PER_FRUITFUL = 10
MAX_WAVES = 3  # times in a row that a pool may take all workers away at once
MIN_IDLE_S = 120.0  # time without a credit after which workers that get no lease are the cause
MAX_QUEUE_S = 600.0  # time without a running worker after which the queue is the cause
CHECK_EVERY_S = 5.0


@dataclass(frozen=True)
class HeadwayFacts:
    """Facts about a run since its last credit."""

    #: numbers of lives without a credit, by their end; of failures of f; of refused pushes; and of running workers that
    #: get no lease
    counts: Mapping[Stall, int]
    last: Mapping[Stall, str]  #: the last occurrence of each, in words
    running: int
    max_lives: int  #: lives in a row without a credit that are tolerated
    #: a connected worker has run longer than any of these lives, so it may still be at its first batch
    is_any_older: bool
    idle_s: float  #: seconds since the last credit
    unstaffed_s: float  #: seconds since a worker ran
    life_s: float  #: mean duration of these lives
    boot_s: float | None  #: mean time from a worker's start to its first message; None: none came


def max_fruitless_lives(ended: int, fruitful: int, workers: int) -> tuple[int, str]:
    """Return how many lives in a row without a credit are tolerated, and the reason. Before these lives, `fruitful` of
    `ended` lives brought a credit. At first every third life is expected to bring one."""
    chance, waves = LIVES_PER_FRUITFUL * (ended + 3) // (fruitful + 1), MAX_WAVES * workers
    return max(chance, waves), f"{chance} by chance, {waves} if all workers are taken away {MAX_WAVES} times"


def judge_headway(facts: HeadwayFacts, longer: str) -> tuple[Stall | None, str]:
    """Return the cause why a run makes no headway, and the reason with advice; None if it may still make headway.
    `longer` is the back end's advice for short lives."""
    counts, lives = facts.counts, sum(facts.counts.get(end, 0) for end in _ENDS)
    if not facts.running and facts.unstaffed_s > MAX_QUEUE_S:
        cause = Stall.NO_MACHINE
    elif 0 < facts.running == counts.get(Stall.AVOIDED, 0) and facts.idle_s > MIN_IDLE_S:
        cause = Stall.AVOIDED
    elif counts.get(Stall.REFUSED, 0) >= max(facts.max_lives, lives / 2):
        cause = Stall.REFUSED
    elif lives < facts.max_lives or facts.is_any_older:
        return None, f"{lives} lives in a row brought no credit; up to {facts.max_lives} are tolerated"
    elif 2 * counts.get(Stall.FAILURE, 0) >= lives:
        cause = Stall.FAILURE
    else:
        cause = max(_ENDS, key=lambda end: counts.get(end, 0))
    reason, advice = _REASONS[cause]
    boot = "no first message came" if facts.boot_s is None else f"a first message takes {span(facts.boot_s)}"
    words = {"lives": lives, "count": counts.get(cause, 0), "last": facts.last.get(cause, ""), "longer": longer}
    words |= {"life": span(facts.life_s), "boot": boot, "unstaffed": span(facts.unstaffed_s)}
    return cause, f"{reason}. {advice}".format(**words)


class Headway:
    """Watches whether vertices are credited. If not, it records the cause: an event, and a fact for `gridml status`."""

    def __init__(
        self, backend: Backend, workers: WorkerTable, ledger: Ledger, measures: Measures, events: Events
    ) -> None:
        self._backend = backend
        self._workers = workers
        self._ledger = ledger
        self._measures = measures
        self._events = events
        self._ended = self._fruitful = 0  # lives before those counted now, and how many of them brought a credit
        self._credited, self._since_s = -1, 0.0  # credited count, and when it was noticed; -1: before the first step
        self._ran_s = self._due_s = 0.0
        self._cause: Stall | None = None  # as recorded last
        self._again = 0, 0.0  # lives in a row, or seconds without a credit, at which the cause is recorded again
        self._reset()

    def _reset(self) -> None:
        self._counts, self._last = Counter[Stall](), dict[Stall, str]()
        self._lived_s = self._longest_s = 0.0

    def end(self, record: WorkerRecord, event: JobEvent, line: str, now: float) -> None:
        """Count a worker that ended and was not dismissed. `line` is the last line of its output."""
        given_up, reported = record.status is WorkerStatus.GIVEN_UP, record.contact.has_reported
        if record.measured.started_s is not None:
            self._ran_s = now
        if record.measured.trained > 0:
            self._ended, self._fruitful = self._ended + 1, self._fruitful + 1
        elif given_up or not reported or event.state is not State.FINISHED:  # otherwise it left for lack of work
            how = Stall.GIVEN_UP if given_up else Stall.FIRST_CREDIT if reported else Stall.START
            how = how if event.state is State.EVICTED else Stall.CRASH
            lived_s = 0.0 if record.measured.started_s is None else now - record.measured.started_s
            self._counts[how] += 1
            self._last[how] = f"{record.name}: {event.detail}" + (f": {line}" if line else "")
            self._lived_s, self._longest_s = self._lived_s + lived_s, max(self._longest_s, lived_s)

    def step(self, now: float, *, work_left: bool) -> None:
        """If the run makes no headway, record the cause; record it again each time the stall has doubled."""
        if self._workers.count(WorkerStatus.RUNNING) or self._credited < 0:
            self._ran_s = now
        if self._ledger.credited != self._credited or not work_left:
            self._ended += self._counts.total()
            self._credited, self._since_s = self._ledger.credited, now
            self._reset()
            self._record(None, "vertices are credited again", now)
        elif now >= self._due_s and (self._counts or now - self._since_s > MIN_IDLE_S):
            self._due_s = now + CHECK_EVERY_S
            cause, reason = judge_headway(self._facts(now), self._backend.longer_lives)
            if cause is not None:
                self._record(cause, reason, now)
            elif self._cause in (Stall.NO_MACHINE, Stall.AVOIDED):
                self._record(None, "workers run, and may be leased a range", now)

    def _facts(self, now: float) -> HeadwayFacts:
        running = [record for record in self._workers if record.status is WorkerStatus.RUNNING]
        avoided = [each for each in running if each.faults.strikes >= AVOID_AFTER and each.faults.avoided_until_s > now]
        machine = self._workers.machines.get(avoided[-1].machine) if avoided else None
        (failed, failure), (refused, refusal), (held, hold) = self._ledger.troubles_since(self._since_s)
        queued = f"{self._workers.count(WorkerStatus.QUEUED)} wait in the queue"
        last = {Stall.NO_MACHINE: f"{queued}, {held} are held: {hold}" if held else queued, Stall.FAILURE: failure}
        last |= {Stall.REFUSED: refusal, Stall.AVOIDED: "" if machine is None else machine.reason}
        boots = self._measures.all.boots
        return HeadwayFacts(
            self._counts | {Stall.FAILURE: failed, Stall.REFUSED: refused, Stall.AVOIDED: len(avoided)},
            self._last | last,
            len(running),
            max_fruitless_lives(self._ended, self._fruitful, self._workers.target)[0],
            is_any_older(running, self._longest_s, now),
            idle_s=now - self._since_s,
            unstaffed_s=now - self._ran_s,
            life_s=self._lived_s / max(1, self._counts.total()),
            boot_s=sum(boots) / len(boots) if boots else None,
        )

    def _record(self, cause: Stall | None, reason: str, now: float) -> None:
        lives, idle_s = self._counts.total(), now - self._since_s
        is_known = self._cause is not None and lives < self._again[0] and idle_s < self._again[1]
        if (self._cause is None) if cause is None else is_known:
            return
        self._cause, self._again = cause, (2 * max(lives, 1), 2 * idle_s)
        fact = None if cause is None else {"cause": cause, "reason": reason, "since_s": self._since_s, "at_s": now}
        text = reason if cause is None else f"nothing was credited in {span(idle_s)}: {reason}"
        with self._ledger.transaction():
            self._ledger.set(NO_HEADWAY, fact)
            self._events.record("headway", {"cause": cause, "lives": lives, "idle_s": idle_s}, text)


def is_any_older(running: Iterable[WorkerRecord], longest_s: float, now: float) -> bool:
    """Return whether any of these workers is connected, and has run for longer than `longest_s`."""
    connected = [record.measured.started_s for record in running if record.contact.has_reported]
    return any(started_s is None or now - started_s > longest_s for started_s in connected)
