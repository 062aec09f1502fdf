"""The fleet: submits the workers of a run, follows the events of their jobs, gives up lost workers, and dismisses
surplus workers and workers near their time limit."""

from __future__ import annotations

import heapq
import math
import sys
from dataclasses import dataclass, replace

from gridml.carriers.base import MasterMailboxes
from gridml.errors import DEVICE, UNEQUIPPED, UNFIT, RunError
from gridml.protocol.foreign import MAX_MESSAGE_CHARS, MAX_NAME_CHARS, ForeignFile, printable, read_end
from master.fleet.crash_loop import CrashLoop, DeviceFailures, Headway, HeldJobs
from master.leases.stealing import TakenRanges
from master.state.failures import GiveUpReason, after_give_up
from master.state.jobs import Backend, JobEvent, Remedy, State
from master.state.worker_records import LostWorker, WorkerRecord, WorkerStatus, WorkerTable
from master.store.journal import Events
from master.store.rundir import EventFacts, RunDirectory, command
from master.store.settings import Settings
from master.sync.exchange import Exchange
from master.sync.recovery import strikes_of
from master.telemetry.measures import Measures, died
from master.telemetry.staffing import (
    Heartbeats,
    PresentWorker,
    Queue,
    is_suspended_long,
    release_time_s,
    workers_to_release,
    workers_to_submit,
)

# Statuses that count towards the target. A held job that is replaced is DISMISSED, so it is not counted twice.
PRESENT = (WorkerStatus.QUEUED, WorkerStatus.RUNNING, WorkerStatus.HELD)
DISMISSAL_GRACE_S = 120.0  # time for a dismissed worker to push and exit
MAX_NAMES = 8  # maximum names of workers in an event
MAX_UNLOGGED_JOBS = 1000  # more jobs than can have been submitted without leaving a log
UNUSABLE = (UNFIT, UNEQUIPPED)  # exit statuses of workers whose machine or job lacks something
RESERVED_S = 600.0  # time for a job's next attempt to deliver the push that the ended attempt could not send


@dataclass(frozen=True)
class Workplace:
    """The fleet's surroundings: the back end of its workers, their mailboxes and their logs."""

    settings: Settings
    directory: RunDirectory
    backend: Backend
    mailboxes: MasterMailboxes


class Fleet:
    """Submits workers to the back end and follows each to its end, in the table of workers and in the ledger."""

    def __init__(
        self, place: Workplace, workers: WorkerTable, exchange: Exchange, measures: Measures, events: Events
    ) -> None:
        self._place = place
        self._workers = workers
        self._exchange = exchange
        self._ledger = exchange.store.ledger
        self._measures = measures
        self._events = events
        self._silent_ranges = TakenRanges()  # how often the holders of a range fell silent, in open epochs
        self._heartbeats = Heartbeats(workers, place.mailboxes.heartbeat, place.settings.silent_s, self._times_silent)
        self._held = HeldJobs(place.backend, workers, exchange.store.ledger)
        self._begun: list[tuple[float, str]] = []  # heap of (start, name) of running workers; ended ones are skipped
        self._submitted, reported = self._ledger.worker_counts()  # `_submitted` also numbers the last name
        # After a rollback of the ledger, workers that it does not know may still run, and names must stay unique.
        if self._ledger.get("undone", False):
            self._submitted = max(self._submitted, place.directory.newest_log()) + MAX_UNLOGGED_JOBS
        self._submitted_s = -math.inf  # time of the last submission
        self._any_reported = reported > 0
        self._crash_loop = CrashLoop(workers, self._ledger)
        self._device_failures = DeviceFailures(workers, self._ledger, exchange.failures, events)
        self._headway = Headway(place.backend, workers, self._ledger, measures, events)
        self._resting: frozenset[str] | None = None  # last argument of `Backend.avoid`; None before the first
        # The error that ends the run. Raised after the transaction, so that the ledger has the events that led to it.
        self._stop: RunError | None = None

    @property
    def has_live_workers(self) -> bool:
        """True if any worker is queued or running."""
        return self._workers.alive > 0

    def expect(self, worker: str, now: float) -> None:
        """Create a row in the ledger, a record and a mailbox for a worker that will start, or that outlived the last
        master. Must be called inside a transaction."""
        self._ledger.worker_submitted(worker, now)
        record = self._workers.add(worker)
        self._measures.submit(record, now)
        self._place.mailboxes.open(worker)
        self._queue(record)

    def handle(self, events: list[JobEvent], now: float) -> None:
        """Handle events of jobs, in order. The leases of ended workers are freed.

        Raises RunError if more workers would be of no use.
        """
        if not events:
            return
        with self._ledger.transaction():
            for event in events:
                event = replace(event, machine=printable(event.machine, MAX_NAME_CHARS), detail=printable(event.detail))
                if event.worker not in self._workers:
                    self.expect(event.worker, now)  # the back end restarts a job by itself
                record = self._workers.get(event.worker)
                if event.state is State.HELD and record is not None and record.status is not WorkerStatus.DISMISSED:
                    event = replace(event, detail=self._hold(record, event, now))
                if event.graceful is None:
                    event = replace(event, graceful=record is not None and record.contact.disconnected)
                self._ledger.worker_event(event, now)
                if record is not None:  # None for a late event of a worker that has ended
                    self._apply(record, event, now)
                if event.state not in (State.QUEUED, State.FINISHED):
                    self._events.record(event.state.value, _facts(event, record, now), self._describe(event))
        for event in events:
            if event.state.ended:
                self._place.mailboxes.close(event.worker)
        if self._stop is not None:
            raise self._stop

    def give_up(self, now: float) -> None:
        """Give up workers that are silent or stuck in f, and those that `WorkerTable.lose` scheduled. Each of them
        counts as a failure (strike) of its machine.

        Raises RunError if one worker after another is given up, none of them trains, and no machine does better.
        """
        for lost in (*self._heartbeats.lost(now), *self._workers.take_lost()):
            if lost.record.is_present:
                self._give_up(lost, now)
        self._relieve_suspended(now)
        self.avoid_resting_machines(now)
        if self._stop is not None:
            raise self._stop

    def _relieve_suspended(self, now: float) -> None:
        """Release the leases of workers that have been suspended for long. Such a worker is not lost: it gets a new
        lease when it is resumed."""
        if not self._workers.count(WorkerStatus.SUSPENDED):
            return
        for record in [record for record in self._workers if record.status is WorkerStatus.SUSPENDED]:
            is_long, reason = is_suspended_long(record.suspended_s, now, self._place.settings.silent_s)
            if is_long and self._ledger.leases.of(record.name):
                with self._ledger.transaction():
                    self._exchange.reports.release(record, reason, now)
                    suspended_s = now - record.suspended_s
                    facts = {"worker": record.name, "machine": record.machine, "suspended_s": suspended_s}
                    self._events.record("relieved", facts, f"{record.name}: {reason}; its leases go to others")

    def _give_up(self, lost: LostWorker, now: float) -> None:
        """Release a worker's leases, remove its job, and count a strike against its machine, whatever the reason."""
        record, because, reason = lost
        self._measures.give_up(record, now, died=because is GiveUpReason.SILENCE)
        with self._ledger.transaction():
            if because is GiveUpReason.SILENCE:
                self._extend_timeout(record)
            # FAILURES were counted as they occurred. A stuck f counts as a failure of the leased range, if any.
            counted = because is GiveUpReason.FAILURES or (
                because is GiveUpReason.STUCK and self._exchange.failures.fail_lease(record, reason, "", now)
            )
            if not counted:
                self._exchange.failures.count(record, reason, now, distrusted=because.is_distrust)
            self._workers.move(record, WorkerStatus.GIVEN_UP)
            self._exchange.reports.release(record, reason, now)
            text = f"{record.name}: {reason}; its leases go to others, its job is removed"
            self._events.record(because.value, strikes_of(record, now), text)
        self.avoid_resting_machines(now)  # first, because a slot that the cancel frees gets a new worker at once
        self._place.backend.cancel(record.name)
        if because is GiveUpReason.MALFORMED:
            self._place.mailboxes.close(record.name)
        again, why = after_give_up(
            record.faults.strikes, credited=record.measured.trained > 0, others_run=self._workers.any_usable()
        )
        if not again:
            self._stop = RunError(f"{why}. The last one, {record.name} on {record.machine}: {reason}")

    def avoid_resting_machines(self, now: float) -> None:
        """Notify the back end if the set of resting machines, on which no worker may start, has changed."""
        resting = self._workers.resting(now)
        if resting != self._resting:
            self._resting = resting
            self._place.backend.avoid(resting)

    def _times_silent(self, worker: str) -> int:
        """Return how often holders of a worker's ranges fell silent; the maximum over these ranges."""
        return max(
            (self._silent_ranges.times(lease.rest) for lease in self._ledger.leases.of(worker).values()), default=0
        )

    def _extend_timeout(self, record: WorkerRecord) -> None:
        """Double the timeout of the next holders of a silent worker's ranges, because f may block heartbeats there."""
        for epoch in self._silent_ranges.epochs:
            if self._ledger.is_epoch_complete(epoch):
                self._silent_ranges.drop(epoch)
        for lease in self._ledger.leases.of(record.name).values():
            self._silent_ranges.add(lease.rest, self._silent_ranges.times(lease.rest) + 1)

    def staff(self, now: float, *, work_left: bool) -> None:
        """Submit the workers that are missing, and dismiss those beyond the number that was requested."""
        for name in self._workers.take_reported():
            self._place.backend.reported(name)
        self._headway.step(now, work_left=work_left)
        self._held.release_due(now)
        if work_left:
            self._retire(now)
        limit = self._place.backend.max_workers
        limit = sys.maxsize if limit is None else limit
        present, target = self._workers.count(*PRESENT), min(self._workers.target, limit)
        # Workers beyond the target, but within the request, are kept: the target only limits submissions.
        requested = min(self._workers.requested, limit)
        if work_left and present > requested:
            self._dismiss(requested)
        if present < target and now < self._crash_loop.next_submission_s:
            return
        queue = self._queue_of_pool(now) if work_left and present < target else None
        count, reason = workers_to_submit(present, target, work_left=work_left, queue=queue)
        if not count:
            return
        names = [f"w{self._submitted + i + 1}" for i in range(count)]
        with self._ledger.transaction():
            for name in names:
                self.expect(name, now)
            facts = {"workers": count, "first": names[0], "last": names[-1], "present": present, "asked": target}
            self._events.record("submitted", facts, f"{names[0]} to {names[-1]}: {reason}", quiet=True)
        self._submitted += count
        self._submitted_s = now
        for name in names:
            self._place.backend.submit(name)

    def _dismiss(self, requested: int) -> None:
        """Dismiss the workers beyond `requested`; each pushes what it has trained, and exits."""
        present = [
            PresentWorker(record.name, record.status is not WorkerStatus.RUNNING, record.measured.speed)
            for record in self._workers
            if record.status in PRESENT
        ]
        names, reason = workers_to_release(present, requested)
        with self._ledger.transaction():
            for name in names:
                self._workers.move(self._workers.of(name), WorkerStatus.DISMISSED)
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            facts = {"workers": len(names), "names": names[:MAX_NAMES], "wanted": requested}
            self._events.record("dismissed", facts, f"{', '.join(names[:MAX_NAMES])}{more}: {reason}")
        for name in names:
            self._place.backend.cancel(name, grace_s=DISMISSAL_GRACE_S)

    def _retire(self, now: float) -> None:
        """Dismiss the workers whose jobs are near the back end's time limit, at which they would end without a push."""
        max_run_s = self._place.backend.max_run_s
        if max_run_s is None:
            return
        while self._begun and now >= release_time_s(self._begun[0][0], max_run_s):
            record = self._workers.get(heapq.heappop(self._begun)[1])
            if record is None or record.status is not WorkerStatus.RUNNING:
                continue  # it has ended, or will soon
            with self._ledger.transaction():
                self._workers.move(record, WorkerStatus.DISMISSED)
                why = f"{record.name}: its job may run for {max_run_s:,.0f} s, and another takes its place"
                facts = {"workers": 1, "names": [record.name], "wanted": self._workers.requested}
                self._events.record("dismissed", facts, why)
            self._place.backend.cancel(record.name, grace_s=DISMISSAL_GRACE_S)

    def _queue_of_pool(self, now: float) -> Queue | None:
        """Return the state of the pool's queue; None if the number of waiting workers is not limited."""
        max_idle, count = self._place.settings.facts.max_idle, self._workers.count
        if max_idle is None:
            return None
        queued, running = count(WorkerStatus.QUEUED), count(WorkerStatus.RUNNING)
        queue = Queue(queued, max_idle, running=running, quiet_s=now - self._submitted_s)
        return self._measures.queue(queue, now)

    def check_machines(self, *, work_left: bool) -> None:
        """Raise RunError if work is left but no queued worker can ever start."""
        reason = self._place.backend.exhausted() if work_left else None
        if reason is not None:
            advice = self._place.backend.more_machines(command("resume", self._place.directory.root))
            raise RunError(f"{reason}; {self._workers.alive} workers wait for one. {advice}")

    def _queue(self, record: WorkerRecord) -> None:
        if record.status not in (WorkerStatus.RUNNING, WorkerStatus.DISMISSED):
            self._workers.move(record, WorkerStatus.QUEUED)

    def _apply(self, record: WorkerRecord, event: JobEvent, now: float) -> None:
        """Update the record of a worker for an event."""
        if event.state is State.QUEUED:
            self._queue(record)  # also after a hold
        elif event.state is State.RUNNING and record.status not in (WorkerStatus.GIVEN_UP, WorkerStatus.DISMISSED):
            begins = record.status is not WorkerStatus.RUNNING
            self._workers.move(record, WorkerStatus.RUNNING)
            self._workers.set_machine(record, event.host)
            self._heartbeats.watch(record, now)
            self._measures.run(record, now)
            if begins and record.measured.started_s is not None:
                heapq.heappush(self._begun, (record.measured.started_s, record.name))
        elif event.state is State.OUT_OF_REACH:
            self._heartbeats.lose_sight(record)
        elif event.state is State.SUSPENDED and record.status is WorkerStatus.RUNNING:
            self._workers.move(record, WorkerStatus.SUSPENDED)
            self._measures.speeds.drop(record)
            record.suspended_s = now
        elif event.state.ended:
            self._end(record, event, now)

    def _end(self, record: WorkerRecord, event: JobEvent, now: float) -> None:
        """Handle the end of a worker: free its leases, and count the end against what caused it."""
        taken = event.state is State.EVICTED and not event.cancelled
        output = "" if taken else self._log_tail(record.name)
        line = output.rpartition("\n")[2]
        # This must precede the release below, which ends the lease on which f may have failed.
        at_work, crashed = self._count_failure(record, event, output, now)
        dismissed, given_up = record.status is WorkerStatus.DISMISSED, record.status is WorkerStatus.GIVEN_UP
        lived_s = 0.0 if record.measured.started_s is None else now - record.measured.started_s
        until_s = now + RESERVED_S if event.next_attempt else None
        because = f"worker {event.state.value}: {event.detail}"
        self._exchange.reports.release(record, because, now, reserved_until_s=until_s)
        self._measures.end(record, now, died=died(event.state, event.cancelled, event.detail))
        if not dismissed:
            self._headway.end(record, event, line, now)
        self._workers.end(record)
        self._any_reported = self._any_reported or record.contact.has_reported
        if dismissed:  # this end was requested, so it says nothing about the program or the machine
            return
        if event.exit_code == DEVICE:
            self._crash_loop.reset()
            self._stop = self._stop or self._device_failures.count(record, line, now)
            return
        if (record.contact.has_reported and not crashed) or taken:
            self._crash_loop.reset()
        else:
            if event.exit_code in UNUSABLE:
                self._exchange.failures.count(record, line, now, unfit=True)
            reported, record_start = self._any_reported, self._crash_loop.record_failed_start
            self._stop_because(event, output, record_start(record, event, line, now, any_reported=reported))
        never_reported = not record.contact.has_reported and event.state is not State.EVICTED
        died_by_itself = (at_work or crashed or never_reported) and not given_up and event.exit_code not in UNUSABLE
        if event.removed or died_by_itself:
            self._stop_because(event, output, self._crash_loop.record_death(event, lived_s, now))

    def _stop_because(self, event: JobEvent, output: str, reason: str | None) -> None:
        """Stop the run at the end of this turn, unless `reason` is None. The first reason of a turn is reported."""
        if reason is not None and self._stop is None:
            log = self._place.directory.log(event.worker)
            ends = f" Its log, {log}, ends:\n{output}" if output else ""
            self._stop = RunError(f"{reason}; the last one: {event.detail}.{ends}")

    def _count_failure(self, record: WorkerRecord, event: JobEvent, output: str, now: float) -> tuple[bool, bool]:
        """Count an unexpected end of a worker. Return (whether it was training, whether it crashed while it was not).
        If it was training, the end counts as a failure of f, whatever the exit status."""
        if event.exit_code in (None, DEVICE) or event.state is State.EVICTED or record.status is WorkerStatus.GIVEN_UP:
            return False, False
        why = f"the worker ended with {event.detail}"
        if self._exchange.failures.fail_lease(record, why, output, now):
            return True, False
        if event.state is State.FINISHED:
            return False, False
        if record.contact.has_reported:
            self._exchange.failures.count(record, why, now)
        return False, True

    def _hold(self, record: WorkerRecord, event: JobEvent, now: float) -> str:
        """Apply the remedy for a job on hold; return the cause and the remedy as a text."""
        backend = self._place.backend
        self._measures.hold(record, now)
        self._workers.move(record, WorkerStatus.HELD)
        any_reported = self._any_reported or any(other.contact.has_reported for other in self._workers)
        remedy, reason = self._held.handle(record, event, now, any_reported=any_reported)
        advice = backend.advice(event.detail)
        if remedy is Remedy.STOP:
            self._stop = RunError(f"{reason}. {advice} Fix the cause, then go on with gridml resume.")
        elif remedy is Remedy.REPLACE:
            self._workers.move(record, WorkerStatus.DISMISSED)  # so `staff` submits another one
            backend.cancel(record.name)
        elif remedy is Remedy.WAIT:
            reason = f"{reason}. {advice} Fix the cause, then release it: {backend.release_command}".rstrip(" :")
        return f"{event.detail}; {reason}"

    def _describe(self, event: JobEvent) -> str:
        place = f" on {event.machine}" if event.machine else ""
        text = f"{event.worker}{place}: {event.detail}"
        if event.exit_code in UNUSABLE:
            return f"{text}: {self._log_tail(event.worker).rpartition(chr(10))[2]}"
        return text

    def _log_tail(self, worker: str) -> str:
        """Return the end of a worker's log, made printable (a log can contain anything); "" if it cannot be read."""
        try:
            end = read_end(self._place.directory.log(worker), MAX_MESSAGE_CHARS)
        except (OSError, ForeignFile):
            return ""
        return printable(end.decode(errors="replace").strip())


def _facts(event: JobEvent, record: WorkerRecord | None, now: float) -> EventFacts:
    """Return the facts of a job's event: its machine, the cause of its state, and how it ended."""
    facts = {"worker": event.worker, "machine": event.machine or ("" if record is None else record.machine)}
    if event.state is State.RUNNING:
        return facts
    facts["cause"] = event.held_for.value if event.state is State.HELD else event.detail
    if not event.state.ended:
        return facts
    lived_s = None if record is None or record.measured.started_s is None else now - record.measured.started_s
    ended = {"exit_code": event.exit_code, "graceful": event.graceful, "cancelled": event.cancelled}
    return {**facts, **ended, "lived_s": lived_s}
