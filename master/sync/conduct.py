"""What each worker was credited and blamed for, and who is in quarantine."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from master.decisions.conduct import PUSHES, SETTLED, WITNESSES, Pace, quarantine, too_fast
from master.records import LeaseState, WorkerRecord
from master.store.ledger import Ledger
from master.store.rundir import command

LOOK_S = 2.0  # between two looks at everybody's pace: with ten thousand workers one costs as much as a hundred pushes


@dataclass
class _Conduct:
    """Of one worker: what it brought since `began_s`, which may have been in the time of an earlier master, what this
    one saw it train since `seen_s`, and which of its last pushes were blamed."""

    began_s: float
    kind: str
    vertices: int = 0
    seen_s: float | None = None
    last_s: float = 0.0
    seen: int = 0  # vertices, in
    pushes: int = 0
    blamed: deque[bool] = field(default_factory=lambda: deque(maxlen=PUSHES))

    def pace(self) -> Pace:
        """As a measure for others: that of a whole life would be too slow, for what the masters before this one saw
        of it is not in it."""
        return Pace(self.seen, self.last_s - (self.seen_s or 0.0), self.pushes, self.kind)


class Conduct:
    """The conduct of the workers of one run. Methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._workers: dict[str, _Conduct] = {}
        self._fastest: list[tuple[str, Pace]] = []  # as of the last look
        self._slowest = math.inf  # of these: who is no faster is too fast for nobody
        self._look_s = 0.0  # when to look again
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
        if now >= self._look_s:
            self._look(now)
        seconds = now - own.began_s
        if own.vertices + vertices <= self._slowest * seconds:
            return None
        pace = Pace(own.vertices + vertices, seconds, own.pushes + 1, record.kind)
        fast, reason = too_fast(pace, [other for name, other in self._fastest if name != record.name])
        return reason if fast else None

    def _look(self, now: float) -> None:
        """Find the fastest of each kind that can be compared with: enough of them without the one that is compared."""
        kinds: dict[str, list[tuple[str, Pace]]] = {}
        for name, each in self._workers.items():
            if each.pushes >= SETTLED:
                kinds.setdefault(each.kind, []).append((name, each.pace()))
        most = [heapq.nlargest(WITNESSES + 1, paces, key=lambda named: named[1].rate) for paces in kinds.values()]
        self._fastest = [named for paces in most for named in paces]
        self._slowest = min((pace.rate for _, pace in self._fastest), default=math.inf)
        self._look_s = now + LOOK_S

    def credit(self, record: WorkerRecord, vertices: int, since_s: float | None, now: float, *, blamed: bool) -> None:
        """A push of a worker was merged that it trained `since_s`, None for what it began in an earlier master's time;
        one that was `blamed` for its length is written down as such already."""
        own = self._of(record)
        if own is None:
            return
        own.vertices, own.kind, own.last_s = own.vertices + vertices, record.kind, now
        if own.seen_s is None:
            own.seen_s = now if since_s is None else since_s
        if since_s is not None:
            own.seen, own.pushes = own.seen + vertices, own.pushes + 1
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
        because = f"{reason}{self._stays(worker)}"
        self._ledger.quarantine(worker, because, now)
        self._quarantined.add(worker)
        self._dismissed.append((worker, because))

    def _stays(self, worker: str) -> str:
        """Say what of a worker's pushes is in the replica, and how a person takes it out."""
        first, vertices = self._ledger.credited_to(worker)
        before = [point.version for point in self._ledger.points() if point.version < first]
        if not vertices or not before:
            return ""
        back = f"{command('rollback', self._ledger.path.parent)} --to v{max(before)}"
        return f"; its {vertices:,} vertices stay credited; to take the run back to before them: {back}"

    def forget(self, worker: str) -> None:
        """A worker has ended: it is no measure for others any more. Idempotent."""
        self._workers.pop(worker, None)

    def _of(self, record: WorkerRecord) -> _Conduct | None:
        """Return the conduct of a worker that this master, or one before it, has heard before: work that comes with a
        first word was trained nobody knows when."""
        if record.message_s is None:
            return None
        own = self._workers.get(record.name)
        if own is None:
            own = self._workers[record.name] = _Conduct(record.message_s, record.kind)
        return own
