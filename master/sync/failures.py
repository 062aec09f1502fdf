"""What failed, who tries it again, and who is left without work for a while."""

from __future__ import annotations

import numpy as np

from gridml.engine.batch_failed import vertices_named
from gridml.errors import UserCodeError
from gridml.protocol.messages import Failure
from master.decisions.devices import rest_of_device
from master.decisions.failures import AVOIDED, Failed, after_failure, pause, pause_of_lacking, replaceable
from master.decisions.gate import NOT_FINITE
from master.leases.leases import Leases
from master.machines import MachineRecord
from master.records import LeaseState, Standing, WorkerRecord, WorkerTable
from master.store.event_facts import EventFacts
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import command


class Failures:
    """Failures of f, of g and of replicas. Methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger, leases: Leases, workers: WorkerTable, events: Events) -> None:
        self._ledger = ledger
        self._leases = leases
        self._workers = workers
        self._events = events
        self._replaceable: list[tuple[WorkerRecord, str]] = []  # (worker, why another process is to take its place)
        self.stop_because: UserCodeError | None = None  # the user's code failed too often

    def take_replaceable(self) -> list[tuple[WorkerRecord, str]]:
        """Return (worker, reason) of those that fail what others do, since this was last asked."""
        taken, self._replaceable = self._replaceable, []
        return taken

    def stop(self, error: UserCodeError) -> None:
        """End the run at the next turn."""
        self.stop_because = self.stop_because or error

    def record(self, lease: LeaseState, failure: Failure, now: float, *, upto: int | None = None) -> None:
        """Free the range of a lease for whoever may try it again, or stop the run; leave its worker without a lease
        for a while. It failed before position `upto` as far as is known."""
        record = self._workers.of(lease.worker)
        at = self._position(lease, failure) if upto is None else upto
        failed = Failed(record.name, record.machine, at, record.candidate.proven)
        queued = self._workers.count(Standing.QUEUED) > len(
            self._workers.resting(now)
        )  # who waits for one that rests waits in vain
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
            advice = f"Mend the program, then go on from the last credit: {resume} --with-changes"
            if NOT_FINITE in failure.message:
                advice = f"gridml check says which data is not finite, if any. {advice}"
            self.stop(UserCodeError(f"{place} {reason}: {failure.message}\n{advice}", failure.traceback))

    def clear(self, record: WorkerRecord) -> None:
        """Forget the failures of a worker that was credited just now, and of those before it on its machine."""
        record.forget_failures()
        self._ledger.worker_failed(record.name, 0, None, None)
        machine = self._workers.machines.forgive(record.machine)
        if machine is None:
            self._ledger.machine_forgiven(record.machine)
        else:
            self._ledger.machine_failed(machine)

    def count(
        self,
        record: WorkerRecord,
        because: str,
        now: float,
        *,
        distrusted: bool = False,
        lacking: bool = False,
        device: bool = False,
    ) -> None:
        """Count a failure against a worker and its machine, which may be `lacking` something, or of its `device`, or
        that the worker is `distrusted`: there is no lease for a while, and another worker takes its place if it fails
        on and on."""
        record.failures += not distrusted
        record.distrusted += distrusted
        if lacking or device:
            seconds, reason = (pause_of_lacking if lacking else rest_of_device)(record.strikes)
        else:
            seconds, reason = pause(record.failures, record.distrusted)
        record.avoided_until_s = now + seconds
        self._ledger.worker_failed(record.name, record.failures, record.avoided_until_s, reason)
        if record.machine:
            self._count_against_machine(record, f"{record.name}: {because}; {reason}")
        if record.strikes >= AVOIDED or lacking or device:
            where = f" on {record.machine}" if record.machine else ""
            self._events.record("avoided", strikes_of(record, now), f"{record.name}{where}: {reason}")
        others_work = any(other is not record for other in self._workers.succeeding())
        replace, reason = replaceable(record.failures - record.failures_before, others_work=others_work)
        if replace:
            self._replaceable.append((record, reason))

    def _count_against_machine(self, record: WorkerRecord, reason: str) -> None:
        """Have a machine take over what counts against a worker of it. Workers that run there side by side count once:
        what takes a host with all its slots is one failure."""
        machine = self._workers.machines.get(record.machine) or MachineRecord(record.machine)
        machine.failures = max(machine.failures, record.failures)
        machine.distrusted = max(machine.distrusted, record.distrusted)
        machine.avoided_until_s = max(machine.avoided_until_s, record.avoided_until_s)
        machine.reason = reason
        self._workers.machines.put(machine)
        self._ledger.machine_failed(machine)

    def _position(self, lease: LeaseState, failure: Failure) -> int:
        """The position that must be credited before a failure is refuted: all of the lease where nobody can say."""
        vertices = self._leases.epochs.vertices(lease.epoch, lease.upto, lease.stop)
        places = np.flatnonzero(vertices == failure.last)
        return lease.upto + int(places[-1]) + 1 if len(places) else lease.stop


def strikes_of(record: WorkerRecord, now: float) -> EventFacts:
    """What counts against a worker, and for how long it gets no lease, as facts of an event."""
    return {
        "worker": record.name,
        "machine": record.machine,
        "failures": record.failures,
        "distrusted": record.distrusted,
        "avoided_s": max(0.0, record.avoided_until_s - now),
    }
