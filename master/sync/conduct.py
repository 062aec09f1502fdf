"""What each worker was credited and blamed for, and who is in quarantine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from master.decisions.conduct import PUSHES, Pace, quarantine, too_fast
from master.records import LeaseState, WorkerRecord
from master.store.ledger import Ledger


@dataclass
class _Conduct:
    """Of one worker, since `began_s`: what it was credited, and which of its last pushes were blamed."""

    began_s: float
    kind: str
    last_s: float = 0.0
    vertices: int = 0
    pushes: int = 0
    blamed: deque[bool] = field(default_factory=lambda: deque(maxlen=PUSHES))

    def pace(self) -> Pace:
        return Pace(self.vertices, self.last_s - self.began_s, self.pushes, self.kind)


class Conduct:
    """The conduct of the workers of one run. Methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._workers: dict[str, _Conduct] = {}
        self._quarantined = set(ledger.quarantined())
        self._dismissed: list[tuple[str, str]] = []  # (worker, why) of those that were quarantined of late

    def quarantined(self, worker: str) -> bool:
        """Whether a worker gets no lease, and nothing of it is taken."""
        return worker in self._quarantined

    def take_dismissed(self) -> list[tuple[str, str]]:
        """Return those that were quarantined since this was last asked, and why."""
        dismissed, self._dismissed = self._dismissed, []
        return dismissed

    def check(self, record: WorkerRecord, vertices: int, now: float) -> str | None:
        """Return why a worker cannot have trained what it brings, None if it can."""
        own = self._of(record)
        if own is None:
            return None
        pace = Pace(own.vertices + vertices, now - own.began_s, own.pushes + 1, record.kind)
        fast, reason = too_fast(pace, [each.pace() for name, each in self._workers.items() if name != record.name])
        return reason if fast else None

    def credit(self, record: WorkerRecord, vertices: int, now: float, *, blamed: bool) -> None:
        """A push of a worker was merged; one that was `blamed` for its length is written down as such already."""
        own = self._of(record)
        if own is None:
            return
        own.vertices, own.pushes, own.last_s, own.kind = own.vertices + vertices, own.pushes + 1, now, record.kind
        if not blamed:
            own.blamed.append(False)

    def blame(self, record: WorkerRecord, lease: LeaseState, reason: str, now: float) -> None:
        """Write down that a push was shortened or refused for what is in it; too often, and its worker is
        quarantined."""
        self._ledger.add_blame(record.name, lease.id, reason, now)
        own = self._workers.setdefault(record.name, _Conduct(now, record.kind))
        own.blamed.append(True)
        others = [each.blamed for name, each in self._workers.items() if name != record.name]
        out, why = quarantine(own.blamed, others)
        if out:
            self.quarantine(record.name, f"{why}; the last one: {reason}", now)

    def quarantine(self, worker: str, reason: str, now: float) -> None:
        """Trust a worker no more. Idempotent."""
        if worker in self._quarantined:
            return
        self._ledger.quarantine(worker, reason, now)
        self._quarantined.add(worker)
        self._dismissed.append((worker, reason))

    def forget(self, worker: str) -> None:
        """A worker has ended: it is no measure for others any more. Idempotent."""
        self._workers.pop(worker, None)

    def _of(self, record: WorkerRecord) -> _Conduct | None:
        """Return the conduct of a worker that this master, or one before it, has heard before: work that comes with a
        first word was trained nobody knows when."""
        if record.message_s is None:
            return None
        return self._workers.setdefault(record.name, _Conduct(record.message_s, record.kind))
