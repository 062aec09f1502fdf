"""Workers that end by themselves, jobs on hold, and failed devices: what follows from each, and when.

A row of workers that ended one after the other shows whether there is any use in more of them. A machine whose
device failed rests, and where no other does better the run ends.
"""

from __future__ import annotations

from collections import Counter

from gridml.errors import RunError
from gridml.protocol.outbox import job_of
from master.state.failures import after_device_failure
from master.state.jobs import Backend, HeldFor, Hold, JobEvent, Remedy, after_hold, in_words
from master.state.worker_records import WorkerRecord, WorkerStatus, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import command
from master.sync.recovery import Failures
from master.telemetry.staffing import Deaths, FailedStart, judge_deaths, judge_failed_starts, submission_backoff

REMEMBERED = 100  # failed starts in a row


class CrashLoop:
    """Counts workers that end before they had any work, and those that end while nothing is credited."""

    def __init__(self, workers: WorkerTable, ledger: Ledger) -> None:
        self._workers = workers
        self._ledger = ledger
        self._failed_starts: list[FailedStart] = []  # in a row
        self._failing_since_s = self._failed_s = 0.0  # when the first of them ended, and the last
        self._deaths, self._credited = Deaths(), ledger.credited  # since so much is credited

    def reset(self) -> None:
        """A worker had work: those that had none before it are forgotten."""
        self._failed_starts.clear()

    def record_failed_start(
        self, record: WorkerRecord, event: JobEvent, words: str, now: float, *, any_spoke: bool
    ) -> str | None:
        """Count a worker that had no work yet; return why the run should stop, None where it may go on. `words` are the
        last line that it printed, `any_spoke` says whether any worker of the run ever had work."""
        if not self._failed_starts:
            self._failing_since_s = now
        self._failed_s = now
        start = FailedStart(record.machine, event.exit_code, words)
        self._failed_starts = [*self._failed_starts[1 - REMEMBERED :], start]
        others_work = any(other.present and self._works(other) for other in self._workers)
        again, reason = judge_failed_starts(self._failed_starts, others_work=others_work, any_spoke=any_spoke)
        return None if again else reason

    def record_death(self, event: JobEvent, lived_s: float, now: float) -> str | None:
        """Count a worker that ended by itself; return why the run should stop, None where it may go on."""
        if self._ledger.credited != self._credited:
            self._deaths, self._credited = Deaths(), self._ledger.credited
        ending = event.state.value if event.exit_code is None else in_words(event.exit_code)
        way = "their jobs removed" if event.removed else ending
        self._deaths = self._deaths.another(way, lived_s)
        connected = (other for other in self._workers if other.contact.has_reported)
        running = (other for other in connected if other.status is WorkerStatus.RUNNING)
        longer = any(
            other.measured.started_s is None or now - other.measured.started_s > self._deaths.longest_s
            for other in running
        )
        again, reason = judge_deaths(self._deaths, others_live_longer=longer)
        return None if again else reason

    @property
    def more_from_s(self) -> float:
        """When more workers may be asked for. It is looked at every turn, the workers only after a failed start."""
        if not self._failed_starts:
            return self._failed_s
        connected = (other for other in self._workers if other.contact.has_reported)
        others_begin = any((other.measured.started_s or 0.0) > self._failing_since_s for other in connected)
        return self._failed_s + submission_backoff(len(self._failed_starts), others_begin=others_begin)[0]

    def _works(self, record: WorkerRecord) -> bool:
        """Whether a worker has spoken, or may yet: it ran before the first of those that ended without a word did. To
        import what a program needs takes longer than a bad machine takes to eat some jobs."""
        if record.contact.has_reported or record.measured.started_s is None:
            return record.contact.has_reported
        begun = record.status in (WorkerStatus.RUNNING, WorkerStatus.SUSPENDED)
        return begun and record.measured.started_s < self._failing_since_s


class HeldJobs:
    """Lets held jobs go on when it is time, and counts what holding them has come to."""

    def __init__(self, backend: Backend, workers: WorkerTable, ledger: Ledger) -> None:
        self._backend = backend
        self._workers = workers
        self._ledger = ledger
        self._released: Counter[str] = Counter()  # how often, by job
        self._due_s: dict[str, float] = {}  # when a worker's job is let go on
        self._fruitless = 0  # holds by no person
        self._credited = -1  # when the last of them was: since then nothing was

    def take(self, record: WorkerRecord, event: JobEvent, now: float, *, spoken: bool) -> tuple[Remedy, str]:
        """Return what is to be done about a hold, and why; a release is done by `release_due`."""
        if self._ledger.credited != self._credited:
            self._credited, self._fruitless = self._ledger.credited, 0
        self._fruitless += event.held_for is not HeldFor.PERSON
        self._due_s.pop(record.name, None)  # it was let go on meanwhile, by somebody else
        job = job_of(record.name)
        hold = Hold(
            event.held_for,
            event.detail,
            released=self._released[job],
            fruitless=self._fruitless,
            held=self._workers.count(WorkerStatus.HELD),
            alive=self._workers.alive + self._workers.count(WorkerStatus.SUSPENDED),
            asked=self._workers.asked,
            spoken=spoken,
        )
        remedy, after_s, reason = after_hold(hold)
        if remedy is Remedy.RELEASE:
            self._released[job] += 1
            self._due_s[record.name] = now + after_s
        return remedy, reason

    def release_due(self, now: float) -> None:
        """Let the jobs go on whose time has come."""
        for worker in [worker for worker, due_s in self._due_s.items() if due_s <= now]:
            del self._due_s[worker]
            self._backend.release(worker)


class DeviceFailures:
    """Counts them, of a whole run. Methods must be called inside the ledger's transaction."""

    def __init__(self, workers: WorkerTable, ledger: Ledger, failures: Failures, events: Events) -> None:
        self._workers = workers
        self._ledger = ledger
        self._failures = failures
        self._events = events
        self._in_a_row, self._credited = 0, ledger.credited  # since so much is credited

    def count(self, record: WorkerRecord, words: str, now: float) -> RunError | None:
        """Count a worker that left because its device failed, with these last `words`; return why the run should stop,
        None where it goes on."""
        if self._ledger.credited != self._credited:
            self._in_a_row, self._credited = 0, self._ledger.credited
        self._in_a_row += 1
        others_work = any(other is not record and other.present for other in self._workers.succeeding())
        again, reason = after_device_failure(self._in_a_row, others_work=others_work)
        facts = {"worker": record.name, "machine": record.machine, "in_a_row": self._in_a_row}
        self._events.record("device", facts, f"{record.name}: {words}")
        self._failures.count(record, words, now, device=True)
        if again:
            return None
        resume = command("resume", self._ledger.path.parent)
        return RunError(f"{reason}. The last one said: {words} Mend that, then go on from the last credit: {resume}")
