"""Workers that ended by themselves, one after the other: whether there is any use in more of them, and when."""

from __future__ import annotations

from master.backends.base import JobEvent, in_words
from master.decisions.staffing import Deaths, FailedStart, after_deaths, after_failed_start, before_more
from master.records import Standing, WorkerRecord, WorkerTable
from master.store.ledger import Ledger

REMEMBERED = 100  # failed starts in a row


class Ends:
    """Counts workers that end before they had any work, and those that end while nothing is credited."""

    def __init__(self, workers: WorkerTable, ledger: Ledger) -> None:
        self._workers = workers
        self._ledger = ledger
        self._failed_starts: list[FailedStart] = []  # in a row
        self._failing_since_s = self._failed_s = 0.0  # when the first of them ended, and the last
        self._deaths, self._credited = Deaths(), ledger.credited  # since so much is credited

    def begin_anew(self) -> None:
        """A worker had work: those that had none before it are forgotten."""
        self._failed_starts.clear()

    def failed_start(
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
        again, reason = after_failed_start(self._failed_starts, others_work=others_work, any_spoke=any_spoke)
        return None if again else reason

    def death(self, event: JobEvent, lived_s: float, now: float) -> str | None:
        """Count a worker that ended by itself; return why the run should stop, None where it may go on."""
        if self._ledger.credited != self._credited:
            self._deaths, self._credited = Deaths(), self._ledger.credited
        if event.removed:
            way = "their jobs removed"
        else:
            way = event.state.value if event.exit_code is None else in_words(event.exit_code)
        self._deaths = self._deaths.another(way, lived_s)
        running = (other for other in self._workers if other.standing is Standing.RUNNING and other.spoke)
        longer = any(other.started_s is None or now - other.started_s > self._deaths.longest_s for other in running)
        again, reason = after_deaths(self._deaths, others_live_longer=longer)
        return None if again else reason

    @property
    def more_from_s(self) -> float:
        """When more workers may be asked for. It is looked at every turn, the workers only after a failed start."""
        if not self._failed_starts:
            return self._failed_s
        begun = (other for other in self._workers if other.spoke and other.started_s is not None)
        others_begin = any((other.started_s or 0.0) > self._failing_since_s for other in begun)
        return self._failed_s + before_more(len(self._failed_starts), others_begin=others_begin)[0]

    def _works(self, record: WorkerRecord) -> bool:
        """Whether a worker has spoken, or may yet: it ran before the first of those that ended without a word did. To
        import what a program needs takes longer than a bad machine takes to eat some jobs."""
        if record.spoke or record.started_s is None:
            return record.spoke
        begun = record.standing in (Standing.RUNNING, Standing.SUSPENDED)
        return begun and record.started_s < self._failing_since_s
