"""Workers whose device failed: their machines rest, and where nobody does better the run ends."""

from __future__ import annotations

from gridml.errors import RunError
from master.decisions.devices import after_device_failure
from master.records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import command
from master.sync.failures import Failures


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
