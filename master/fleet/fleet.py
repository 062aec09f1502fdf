"""The workers of a run from their submission to their end: asked for, heard of, given up."""

from __future__ import annotations

import heapq
import math
import sys
from dataclasses import dataclass, replace

from gridml.carriers.base import MasterMailboxes
from gridml.errors import DEVICE, UNEQUIPPED, UNFIT, RunError
from gridml.protocol.foreign import MAX_MESSAGE_CHARS, MAX_NAME_CHARS, ForeignFile, printable, read_end
from master.fleet.crash_loop import CrashLoop, DeviceFailures, HeldJobs
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

# A worker whose job is held and replaced is DISMISSED, so it is not counted twice.
PRESENT = (WorkerStatus.QUEUED, WorkerStatus.RUNNING, WorkerStatus.HELD)
DISMISSAL_GRACE_S = 120.0  # for a dismissed worker to push and leave
MAX_NAMES = 8  # workers in an event
MAX_UNLOGGED_JOBS = 1000  # jobs that may have been submitted and have left no log
UNUSABLE = (UNFIT, UNEQUIPPED)  # exit statuses of workers that find that something is missing where they are
RESERVED_S = 600.0  # how long a worker that is started again may take to bring what it could not send before


@dataclass(frozen=True)
class Workplace:
    """Where a run's workers come from, where their messages arrive, and where they print."""

    settings: Settings
    directory: RunDirectory
    backend: Backend
    mailboxes: MasterMailboxes


class Fleet:
    """Asks the back end for workers and follows each from its submission to its end, in the ledger too."""

    def __init__(
        self, place: Workplace, workers: WorkerTable, exchange: Exchange, measures: Measures, events: Events
    ) -> None:
        self._place = place
        self._workers = workers
        self._exchange = exchange
        self._ledger = exchange.store.ledger
        self._measures = measures
        self._events = events
        self._silent_ranges = TakenRanges()  # from who fell silent at them
        self._heartbeats = Heartbeats(workers, place.mailboxes.heartbeat, place.settings.silent_s, self._times_silent)
        self._held = HeldJobs(place.backend, workers, exchange.store.ledger)
        self._begun: list[tuple[float, str]] = []  # a heap: when each worker that runs began, and its name
        self._submitted, spoke = self._ledger.worker_counts()
        if self._ledger.get("undone", False):  # a worker of the time that is lost may live, and has its name still
            self._submitted = max(self._submitted, place.directory.newest_log()) + MAX_UNLOGGED_JOBS
        self._submitted_s = -math.inf  # when the last were
        self._any_spoke = spoke > 0
        self._crash_loop = CrashLoop(workers, self._ledger)
        self._device_failures = DeviceFailures(workers, self._ledger, exchange.failures, events)
        self._resting: frozenset[str] | None = None  # machines on which no worker is to start, as the back end knows
        self._stop: RunError | None = None  # why there is no use in going on

    @property
    def alive(self) -> bool:
        """Whether any worker is queued or running."""
        return self._workers.alive > 0

    def expect(self, worker: str, now: float) -> None:
        """Make a row, a record and a mailbox for a worker that will come, or lives on. Must be called inside a
        transaction."""
        self._ledger.worker_submitted(worker, now)
        record = self._workers.add(worker)
        self._measures.submit(record, now)
        self._place.mailboxes.open(worker)
        self._queue(record)

    def hear(self, events: list[JobEvent], now: float) -> None:
        """Take what the back end says of workers; an ended one's leases are free again.

        Raises RunError when no worker can start.
        """
        if not events:
            return
        with self._ledger.transaction():
            for event in events:
                event = replace(event, machine=printable(event.machine, MAX_NAME_CHARS), detail=printable(event.detail))
                if event.worker not in self._workers:
                    self.expect(event.worker, now)  # the back end starts it again by itself
                record = self._workers.get(event.worker)
                if event.state is State.HELD and record is not None and record.status is not WorkerStatus.DISMISSED:
                    event = replace(event, detail=self._hold(record, event, now))
                if event.graceful is None:
                    event = replace(event, graceful=record is not None and record.contact.disconnected)
                self._ledger.worker_event(event, now)
                if record is not None:  # one that has ended already changes nothing any more
                    self._apply(record, event, now)
                if event.state not in (State.QUEUED, State.FINISHED):
                    self._events.record(event.state.value, _facts(event, record, now), self._describe(event))
        for event in events:
            if event.state.ended:
                self._place.mailboxes.close(event.worker)
        if self._stop is not None:
            raise self._stop

    def give_up(self, now: float) -> None:
        """Give up on workers that are silent for too long (something took them that nobody reported), that are stuck in
        f, that fail what others do, and that are trusted no more; their machines rest for a while, or for good.

        Raises RunError when no machine does any better.
        """
        for lost in (*self._heartbeats.lost(now), *self._workers.take_lost()):
            if lost.record.present:
                self._give_up(lost, now)
        self._relieve_suspended(now)
        self.let_machines_rest(now)
        if self._stop is not None:
            raise self._stop

    def _relieve_suspended(self, now: float) -> None:
        """Give to others what workers hold that have stood still for long. They may go on later, and count as lost for
        nothing."""
        if not self._workers.count(WorkerStatus.SUSPENDED):
            return
        for record in [record for record in self._workers if record.status is WorkerStatus.SUSPENDED]:
            relieved, reason = is_suspended_long(record.suspended_s, now, self._place.settings.silent_s)
            if relieved and self._ledger.leases.of(record.name):
                with self._ledger.transaction():
                    self._exchange.reports.release(record, reason, now)
                    still_s = now - record.suspended_s
                    facts = {"worker": record.name, "machine": record.machine, "suspended_s": still_s}
                    self._events.record("relieved", facts, f"{record.name}: {reason}; its leases go to others")

    def _give_up(self, lost: LostWorker, now: float) -> None:
        """Take its leases from a worker, and its job; whatever it is given up for counts against its machine."""
        record, because, reason = lost
        self._measures.give_up(record, now, died=because is GiveUpReason.SILENCE)
        with self._ledger.transaction():
            if because is GiveUpReason.SILENCE:
                self._extend_timeout(record)
            counted = because is GiveUpReason.FAILURES or (
                because is GiveUpReason.NO_HEADWAY and self._exchange.failures.fail_lease(record, reason, "", now)
            )
            if not counted:
                self._exchange.failures.count(record, reason, now, distrusted=because.distrusted)
            self._workers.move(record, WorkerStatus.GIVEN_UP)
            self._exchange.reports.release(record, reason, now)
            text = f"{record.name}: {reason}; its leases go to others, its job is removed"
            self._events.record(because.value, strikes_of(record, now), text)
        self.let_machines_rest(now)  # before its job is: another would take the place at once
        self._place.backend.cancel(record.name)
        if because is GiveUpReason.NONSENSE:
            self._place.mailboxes.close(record.name)
        again, why = after_give_up(
            record.faults.strikes, credited=record.measured.trained > 0, others_run=self._workers.any_promises()
        )
        if not again:
            self._stop = RunError(f"{why}. The last one, {record.name} on {record.machine}: {reason}")

    def let_machines_rest(self, now: float) -> None:
        """Ask for no worker on the machines that are to rest, and again on those that have rested."""
        resting = self._workers.resting(now)
        if resting != self._resting:
            self._resting = resting
            self._place.backend.avoid(resting)

    def _times_silent(self, worker: str) -> int:
        """How often the holders of what a worker is to train fell silent."""
        return max(
            (self._silent_ranges.times(lease.rest) for lease in self._ledger.leases.of(worker).values()), default=0
        )

    def _extend_timeout(self, record: WorkerRecord) -> None:
        """Let whoever gets the ranges of a worker that fell silent be silent for twice as long."""
        for epoch in self._silent_ranges.epochs:
            if self._ledger.is_epoch_complete(epoch):
                self._silent_ranges.drop(epoch)
        for lease in self._ledger.leases.of(record.name).values():
            self._silent_ranges.add(lease.rest, self._silent_ranges.times(lease.rest) + 1)

    def staff(self, now: float, *, work_left: bool) -> None:
        """Ask for as many workers as are missing, and tell those to leave that are too many."""
        self._held.release_due(now)
        if work_left:
            self._retire(now)
        most = self._place.backend.max_workers
        most = sys.maxsize if most is None else most
        present, asked = self._workers.count(*PRESENT), min(self._workers.asked, most)
        wanted = min(self._workers.wanted, most)
        if work_left and present > wanted:
            self._dismiss(wanted)
        if present < asked and now < self._crash_loop.more_from_s:
            return
        queue = self._queue_of_pool(now) if work_left and present < asked else None
        count, reason = workers_to_submit(present, asked, work_left=work_left, queue=queue)
        if not count:
            return
        names = [f"w{self._submitted + i + 1}" for i in range(count)]
        with self._ledger.transaction():
            for name in names:
                self.expect(name, now)
            facts = {"workers": count, "first": names[0], "last": names[-1], "present": present, "asked": asked}
            self._events.record("submitted", facts, f"{names[0]} to {names[-1]}: {reason}", quiet=True)
        self._submitted += count
        self._submitted_s = now
        for name in names:
            self._place.backend.submit(name)

    def _dismiss(self, wanted: int) -> None:
        """Tell the workers that are too many to leave: they push what they have trained."""
        present = [
            PresentWorker(record.name, record.status is not WorkerStatus.RUNNING, record.measured.speed)
            for record in self._workers
            if record.status in PRESENT
        ]
        names, reason = workers_to_release(present, wanted)
        with self._ledger.transaction():
            for name in names:
                self._workers.move(self._workers.of(name), WorkerStatus.DISMISSED)
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            facts = {"workers": len(names), "names": names[:MAX_NAMES], "wanted": wanted}
            self._events.record("dismissed", facts, f"{', '.join(names[:MAX_NAMES])}{more}: {reason}")
        for name in names:
            self._place.backend.cancel(name, grace_s=DISMISSAL_GRACE_S)

    def _retire(self, now: float) -> None:
        """Tell those to leave whose jobs would soon have run for longer than the pool allows."""
        longest_s = self._place.backend.max_run_s
        if longest_s is None:
            return
        while self._begun and now >= release_time_s(self._begun[0][0], longest_s):
            record = self._workers.get(heapq.heappop(self._begun)[1])
            if record is None or record.status is not WorkerStatus.RUNNING:
                continue  # it has ended, or will soon
            with self._ledger.transaction():
                self._workers.move(record, WorkerStatus.DISMISSED)
                why = f"{record.name}: its job may run for {longest_s:,.0f} s, and another takes its place"
                facts = {"workers": 1, "names": [record.name], "wanted": self._workers.wanted}
                self._events.record("dismissed", facts, why)
            self._place.backend.cancel(record.name, grace_s=DISMISSAL_GRACE_S)

    def _queue_of_pool(self, now: float) -> Queue | None:
        """The pool's queue, None where any number of workers may wait."""
        most, count = self._place.settings.facts.max_idle, self._workers.count
        if most is None:
            return None
        queued, running = count(WorkerStatus.QUEUED), count(WorkerStatus.RUNNING)
        queue = Queue(queued, most, running=running, quiet_s=now - self._submitted_s)
        return self._measures.queue(queue, now)

    def check_machines(self, *, work_left: bool) -> None:
        """Raise RunError where work is left and nobody will ever come to do it."""
        gone = self._place.backend.exhausted() if work_left else None
        if gone is not None:
            advice = self._place.backend.more_machines(command("resume", self._place.directory.root))
            raise RunError(f"{gone}; {self._workers.alive} workers wait for one. {advice}")

    def _queue(self, record: WorkerRecord) -> None:
        if record.status not in (WorkerStatus.RUNNING, WorkerStatus.DISMISSED):
            self._workers.move(record, WorkerStatus.QUEUED)

    def _apply(self, record: WorkerRecord, event: JobEvent, now: float) -> None:
        """Do what one event asks for."""
        if event.state is State.QUEUED:
            self._queue(record)  # one that was held, too
        elif event.state is State.RUNNING and record.status not in (WorkerStatus.GIVEN_UP, WorkerStatus.DISMISSED):
            begins = record.status is not WorkerStatus.RUNNING
            self._workers.move(record, WorkerStatus.RUNNING)
            self._workers.arrive(record, event.host)
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
        taken = event.state is State.EVICTED and not event.cancelled
        words = "" if taken else self._last_words(record.name)
        at_work, crashed = self._count_failure(record, event, words, now)
        dismissed, given_up = record.status is WorkerStatus.DISMISSED, record.status is WorkerStatus.GIVEN_UP
        lived_s = 0.0 if record.measured.started_s is None else now - record.measured.started_s
        until_s = now + RESERVED_S if event.next_attempt else None
        because = f"worker {event.state.value}: {event.detail}"
        self._exchange.reports.release(record, because, now, reserved_until_s=until_s)
        self._measures.end(record, now, died=died(event.state, event.cancelled, event.detail))
        self._workers.end(record)
        self._any_spoke = self._any_spoke or record.contact.has_reported
        if dismissed:
            return
        if event.exit_code == DEVICE:
            self._crash_loop.reset()
            line = words.rpartition("\n")[2]
            self._stop = self._stop or self._device_failures.count(record, line, now)
            return
        if (record.contact.has_reported and not crashed) or taken:
            self._crash_loop.reset()
        else:
            line = words.rpartition("\n")[2]
            if event.exit_code in UNUSABLE:
                self._exchange.failures.count(record, line, now, lacking=True)
            self._stop_over(
                event, words, self._crash_loop.record_failed_start(record, event, line, now, any_spoke=self._any_spoke)
            )
        unheard = not record.contact.has_reported and event.state is not State.EVICTED
        if event.removed or ((at_work or crashed or unheard) and not given_up and event.exit_code not in UNUSABLE):
            self._stop_over(event, words, self._crash_loop.record_death(event, lived_s, now))

    def _stop_over(self, event: JobEvent, words: str, reason: str | None) -> None:
        """Stop the run at the end of this turn over how a worker has ended; the first reason is the one."""
        if reason is not None and self._stop is None:
            log = self._place.directory.log(event.worker)
            ends = f" Its log, {log}, ends:\n{words}" if words else ""
            self._stop = RunError(f"{reason}; the last one: {event.detail}.{ends}")

    def _count_failure(self, record: WorkerRecord, event: JobEvent, words: str, now: float) -> tuple[bool, bool]:
        """Count the end of a worker that nobody asked for: as a failure of f, where it was at work, whatever its exit
        status; return whether it was, and whether it crashed at nothing that is known of."""
        if event.exit_code in (None, DEVICE) or event.state is State.EVICTED or record.status is WorkerStatus.GIVEN_UP:
            return False, False
        why = f"the worker ended with {event.detail}"
        if self._exchange.failures.fail_lease(record, why, words, now):
            return True, False
        if event.state is State.FINISHED:
            return False, False
        if record.contact.has_reported:
            self._exchange.failures.count(record, why, now)
        return False, True

    def _hold(self, record: WorkerRecord, event: JobEvent, now: float) -> str:
        """Do what is to be done about a job on hold; return why it is, and what is done."""
        backend = self._place.backend
        self._measures.hold(record, now)
        self._workers.move(record, WorkerStatus.HELD)
        spoken = self._any_spoke or any(other.contact.has_reported for other in self._workers)
        remedy, reason = self._held.take(record, event, now, spoken=spoken)
        advice = backend.advice(event.detail)
        if remedy is Remedy.STOP:
            self._stop = RunError(f"{reason}. {advice} Mend the cause, then go on with gridml resume.")
        elif remedy is Remedy.REPLACE:
            self._workers.move(record, WorkerStatus.DISMISSED)  # the next takes its place
            backend.cancel(record.name)
        elif remedy is Remedy.WAIT:
            reason = f"{reason}. {advice} Mend the cause, then let it go on: {backend.release_command}".rstrip(" :")
        return f"{event.detail}; {reason}"

    def _describe(self, event: JobEvent) -> str:
        what = (
            f"{event.worker} on {event.machine}: {event.detail}" if event.machine else f"{event.worker}: {event.detail}"
        )
        if event.exit_code in UNUSABLE:
            return f"{what}: {self._last_words(event.worker).rpartition(chr(10))[2]}"
        return what

    def _last_words(self, worker: str) -> str:
        """The end of what a worker printed, which may be anything."""
        try:
            end = read_end(self._place.directory.log(worker), MAX_MESSAGE_CHARS)
        except (OSError, ForeignFile):
            return ""
        return printable(end.decode(errors="replace").strip())


def _facts(event: JobEvent, record: WorkerRecord | None, now: float) -> EventFacts:
    """What the back end said of a worker: where it runs, why it does not, how it ended."""
    facts = {"worker": event.worker, "machine": event.machine or ("" if record is None else record.machine)}
    if event.state is State.RUNNING:
        return facts
    facts["cause"] = event.held_for.value if event.state is State.HELD else event.detail
    if not event.state.ended:
        return facts
    lived_s = None if record is None or record.measured.started_s is None else now - record.measured.started_s
    ended = {"exit_code": event.exit_code, "graceful": event.graceful, "cancelled": event.cancelled}
    return {**facts, **ended, "lived_s": lived_s}
