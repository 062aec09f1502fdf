"""The jobs of a run that are on hold: what is done about each of them, and when."""

from __future__ import annotations

from collections import Counter

from gridml.protocol.attempts import job_of
from master.backends.base import Backend, JobEvent
from master.decisions.holds import HeldFor, Hold, Remedy, after_hold
from master.records import Standing, WorkerRecord, WorkerTable
from master.store.ledger import Ledger


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
            held=self._workers.count(Standing.HELD),
            alive=self._workers.alive + self._workers.count(Standing.SUSPENDED),
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
