"""Failures in a run: retries and pauses, notices to the user, and rollbacks of a bad replica.

If several workers fail on a replica and no worker succeeds on it, the last merges are undone: the run continues from
the newest version before them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gridml.carriers.base import BEGUN, MasterMailboxes
from gridml.engine.update_runner import vertices_named
from gridml.errors import DamagedError, UserCodeError
from gridml.protocol.foreign import one_line
from gridml.protocol.messages import Failure, Push
from master.leases.leases import Leases
from master.state.failures import (
    AVOID_AFTER,
    Failed,
    GiveUpReason,
    MachineRecord,
    after_failure,
    pause,
    rest_of_device,
    rest_of_unfit_machine,
    should_replace,
)
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerRecord, WorkerStatus, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import EventFacts, command
from master.store.store import Store
from master.sync.gate import NOT_FINITE
from master.sync.moments import SharedMoments
from master.trust.trust import Trust


class Failures:
    """Records failures of f, of g and of replicas. Methods must be called inside the ledger's transaction."""

    def __init__(
        self, ledger: Ledger, leases: Leases, workers: WorkerTable, mailboxes: MasterMailboxes, events: Events
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._workers = workers
        self._mailboxes = mailboxes
        self._events = events
        #: set once the user's code has failed too often; the run then stops in its next turn
        self.stop_because: UserCodeError | None = None

    def fail_lease(self, record: WorkerRecord, why: str, last_words: str, now: float) -> bool:
        """Record a failure of the lease that a worker was training when it ended, because the worker could not report
        the failure itself. Return whether there was such a lease.

        It is the lease in the worker's last heartbeat; without a heartbeat, the worker's first lease.
        """
        heartbeat, held = self._mailboxes.heartbeat(record.name), self._ledger.leases.of(record.name)
        if heartbeat is None or heartbeat.lease == BEGUN:
            lease, at = next(iter(held.values()), None), None
        else:
            lease, at = held.get(heartbeat.lease), heartbeat.upto + 1
        if lease is None:
            return False
        at = None if at is None else min(max(at, lease.upto + 1), lease.stop)  # a hostile heartbeat may hold anything
        self.record(lease, Failure(lease.id, lease.term, why, last_words, -1, -1), now, upto=at)
        return True

    def record(self, lease: LeaseState, failure: Failure, now: float, *, upto: int | None = None) -> None:
        """Record a failure of a lease at a position before `upto`; None: derive the position from `failure`. Unless the
        run stops, the range becomes free for a retry. The worker gets no lease for a while."""
        record = self._workers.of(lease.worker)
        at = self._position(lease, failure) if upto is None else upto
        failed = Failed(record.name, record.machine, at, record.candidate.proven)
        # Each resting machine can keep one queued worker waiting, which then cannot retry the range.
        queued = self._workers.count(WorkerStatus.QUEUED) > len(self._workers.resting(now))
        ready = [*self._workers.ready(now)]
        again, reason = after_failure((*lease.failed, failed), ready, queued=queued)
        self._ledger.add_failure(lease, record.machine, failure, reason, now)
        self._leases.end(lease, now, failure.message, failed=failed)
        chunk = f"chunk [{lease.start}, {lease.stop}) of epoch {lease.epoch + 1}"
        vertices = vertices_named(self._leases.epochs.driver, failure.first, failure.last)
        place = f"{vertices} in {chunk}" if failure.first >= 0 else chunk
        facts = {
            "worker": record.name,
            "machine": record.machine,
            "lease": lease.id,
            "epoch": lease.epoch + 1,
            "start": lease.start,
            "stop": lease.stop,
        }
        self._events.record("failure", facts, f"{place}, {lease.worker}: {failure.message}; {reason}")
        self.count(record, failure.message, now)
        if not again:
            resume = command("resume", self._ledger.path.parent)
            advice = f"Fix the program, then go on from the last credit: {resume} --with-changes"
            if NOT_FINITE in failure.message:
                advice = f"gridml check says which data is not finite, if any. {advice}"
            error = UserCodeError(f"{place} {reason}: {one_line(failure.message)}\n{advice}", failure.traceback)
            self.stop_because = self.stop_because or error

    def clear(self, record: WorkerRecord) -> None:
        """Forget the failures of a worker that was just credited, and those of earlier workers on its machine."""
        record.faults.clear()
        self._ledger.worker_failed(record.name, 0, None, None)
        machine = self._workers.machines.clear_failures(record.machine)
        if machine is None:
            self._ledger.clear_machine(record.machine)
        else:
            self._ledger.machine_failed(machine)

    def count(
        self,
        record: WorkerRecord,
        because: str,
        now: float,
        *,
        distrusted: bool = False,
        unfit: bool = False,
        device: bool = False,
    ) -> None:
        """Count a failure against a worker and its machine; with `distrusted`, count a loss of trust instead.

        The worker gets no lease for a while, and is replaced if it fails again and again. `unfit` is True if the
        machine lacks something, `device` if its device failed.
        """
        record.faults.failures += not distrusted
        record.faults.distrusted += distrusted
        if unfit or device:
            seconds, reason = (rest_of_unfit_machine if unfit else rest_of_device)(record.faults.strikes)
        else:
            seconds, reason = pause(record.faults.failures, record.faults.distrusted)
        record.faults.avoided_until_s = now + seconds
        self._ledger.worker_failed(record.name, record.faults.failures, record.faults.avoided_until_s, reason)
        if record.machine:
            self._count_against_machine(record, f"{record.name}: {because}; {reason}")
        if record.faults.strikes >= AVOID_AFTER or unfit or device:
            where = f" on {record.machine}" if record.machine else ""
            self._events.record("avoided", strikes_of(record, now), f"{record.name}{where}: {reason}")
        others_work = any(other is not record for other in self._workers.succeeding())
        replace, reason = should_replace(record.faults.failures - record.faults.inherited, others_work=others_work)
        if replace:
            self._workers.lose(record, GiveUpReason.FAILURES, reason)

    def _count_against_machine(self, record: WorkerRecord, reason: str) -> None:
        """Raise the counts of a machine to those of its worker. Counts of a machine are maxima over its workers, not
        sums, because a failure of the host ends the workers in all its slots, but must count once."""
        machine = self._workers.machines.get(record.machine) or MachineRecord(record.machine)
        machine.failures = max(machine.failures, record.faults.failures)
        machine.distrusted = max(machine.distrusted, record.faults.distrusted)
        machine.avoided_until_s = max(machine.avoided_until_s, record.faults.avoided_until_s)
        machine.reason = reason
        self._workers.machines.put(machine)
        self._ledger.machine_failed(machine)

    def _position(self, lease: LeaseState, failure: Failure) -> int:
        """Return the position up to which a credit refutes a failure; the lease's end if the vertex is unknown."""
        vertices = self._leases.epochs.vertices(lease.epoch, lease.upto, lease.stop)
        places = np.flatnonzero(vertices == failure.last)
        return lease.upto + int(places[-1]) + 1 if len(places) else lease.stop


def strikes_of(record: WorkerRecord, now: float) -> EventFacts:
    """Return facts for an event: what counts against a worker, and for how many seconds it gets no lease."""
    return {
        "worker": record.name,
        "machine": record.machine,
        "failures": record.faults.failures,
        "distrusted": record.faults.distrusted,
        "avoided_s": max(0.0, record.faults.avoided_until_s - now),
    }


#: Number of workers that must fail, each on another range, before the replica is suspected.
MIN_WORKERS = 2
#: Maximum number of automatic rollbacks of a run. Without it, a run whose program is at fault would never stop.
MAX_ROLLBACKS = 3


@dataclass(frozen=True)
class FailedOn:
    """A worker's failure on a range, trained from a version of the replica."""

    worker: str
    epoch: int
    #: first position of the range
    start: int
    #: version of the replica
    version: int


def rollback_target(
    failed: Sequence[FailedOn], succeeded_on: int | None, kept: Collection[int], times: int
) -> tuple[int | None, str]:
    """Return (version to go back to, reason); the version is None if the run should continue.

    `failed` are the failures since the last success. `succeeded_on` is the newest base of a push that this master
    merged; None: it has merged no push. `kept` are the versions that exist, and `times` is the number of earlier
    rollbacks.
    """
    if succeeded_on is None:
        return None, "nothing has succeeded yet"
    # Failures of several workers on the same range say nothing about the replica, so the ranges must differ, too.
    # Failures of a program that has never worked say nothing either, so None is returned above.
    recent = [each for each in failed if each.version > succeeded_on]
    workers = {each.worker for each in recent}
    if min(len(workers), len({(each.epoch, each.start) for each in recent})) < MIN_WORKERS:
        return None, f"{len(workers)} workers fail on what was merged since version {succeeded_on}"
    bad = min(each.version for each in recent)
    older = [version for version in kept if version < bad]
    reason = f"{', '.join(sorted(workers))} fail on version {bad} or later, and no worker succeeds on one"
    if times >= MAX_ROLLBACKS:
        return None, f"{reason}; the run was taken back {times} times already"
    if not older:
        return None, f"{reason}; no version before it is kept"
    return max(older), reason


class Recovery:
    """Records failures and successes by version, and rolls the run back if the replica is bad."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        failures: Failures,
        trust: Trust,
        moments: SharedMoments,
        events: Events,
    ) -> None:
        self._store = store
        self._leases = leases
        self.failures = failures
        self._trust = trust
        self.moments = moments
        self._events = events
        #: failures on versions newer than `_succeeded_on`
        self._failed: list[FailedOn] = []
        #: newest base of a merged push; None before the first merged push
        self._succeeded_on: int | None = None

    def record_failure(self, lease: LeaseState, version: int) -> None:
        """Record a failure on the next range of a lease, with a replica of `version`."""
        self._failed.append(FailedOn(lease.worker, lease.epoch, lease.upto, version))

    def record_success(self, push: Push) -> None:
        """Record a merged push."""
        self._succeeded_on = max(push.base, -1 if self._succeeded_on is None else self._succeeded_on)
        self._failed = [each for each in self._failed if each.version > self._succeeded_on]

    def step(self, now: float) -> bool:
        """Roll the run back if the replica is bad; return whether it was rolled back. Must be called outside a
        transaction."""
        if not self._failed:
            return False
        ledger, replica = self._store.ledger, self._store.replica
        # A rollback copies an old version under a new number; failures on the copy count as failures on the original.
        restored, copied_from = ledger.get("restored", (-1, -1))
        failed = [
            FailedOn(each.worker, each.epoch, each.start, copied_from if each.version == restored else each.version)
            for each in self._failed
        ]
        succeeded = copied_from - 1 if self._succeeded_on == restored else self._succeeded_on
        base = ledger.base()  # the run cannot go back beyond it, because older fields of local vertices are not kept
        oldest = 0 if base is None else base.version
        kept = [version for version in ledger.saved_versions if version != restored and version >= oldest]
        to, reason = rollback_target(failed, succeeded, kept, ledger.get("taken_back", 0))
        if to is None:
            return False
        victims = {each.worker for each in failed}
        newest, gone = replica.next_version, [version for version in ledger.saved_versions if version > to]
        try:
            sha256 = self._store.versions.copy(to, ledger.sha256_of(to), newest, ledger.credited_at(to) or 0)
        except DamagedError:  # no rollback is possible
            return False
        because = f"taken back to version {to}: {reason}"
        with ledger.transaction():
            for lease in [*ledger.leases]:
                self._leases.end(lease, now, because)
            undone = ledger.roll_back(to, newest, sha256, now, because)
            ledger.set("restored", (newest, to))
            ledger.set("taken_back", ledger.get("taken_back", 0) + 1)
            again = f"{undone.vertices:,} vertices are trained again"
            facts = {"version": to, "vertices": undone.vertices}
            self._events.record("rollback", facts, f"back to version {to}, as {reason}; {again}")
            for worker in undone.workers:
                if worker not in victims:
                    self._trust.quarantine(worker, f"its pushes after version {to} were undone", now)
        ledger.backup()  # because the old copy may need a version that is removed below
        replica.load(newest, sha256)
        self.moments.clear()
        self._store.fields.show(base, ledger.patches())
        for version in gone:
            replica.drop(version)
        self._failed, self._succeeded_on = [], to
        self.failures.stop_because = None  # the merges that caused the failures are undone
        return True
