"""Whom a run trusts: the door to this room. What each worker was credited and flagged for, and who is in quarantine.

It decides whether a worker can have trained what it brings, and when it is trusted no more, by the master's clock
and by what others do. What a worker says of its own speed is no evidence. Where a run asks for spot checks, they are
reached through here, too; a run that asks for none does not load them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridml.protocol.messages import Sync
from gridml.protocol.push import PushContent
from master.leases.leases import Leases
from master.state.failures import GiveUpReason
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.rundir import command
from master.store.store import Store

if TYPE_CHECKING:
    from master.trust.spot_checks import Start


SLACK, SLACK_ANY_KIND = 10.0, 100.0  # times as fast as the fastest other of its kind of machine, and of any kind
MIN_WITNESSES = 2  # others that must be at work, each with
MIN_PUSHES = 3  # pushes, before anybody is compared with them
MAX_PUSHES = 8  # of a worker that are looked back on,
MIN_FLAGS = 3  # so many of which a majority of others would not have brought
FLAG_RATIO = 4.0  # times as often as the others are blamed: where all of them are, the program is to blame


@dataclass(frozen=True)
class CreditPace:
    """Vertices that a worker was credited in so many seconds since it was first given work, in so many pushes, on a
    machine of some kind."""

    vertices: int
    seconds: float
    pushes: int
    kind: str = ""

    @property
    def rate(self) -> float:
        """Vertices per second."""
        return self.vertices / self.seconds if self.seconds > 0 else 0.0


def too_fast(own: CreditPace, others: Sequence[CreditPace]) -> tuple[bool, str]:
    """Whether a worker brings more than any machine like its own can have trained, and why.

    `own` counts the push in question. Before anything is known of two others that are at work nothing is too fast.
    """
    settled = [other for other in others if other.pushes >= MIN_PUSHES and other.rate > 0]
    alike = [other for other in settled if other.kind == own.kind]
    for group, slack, whose in ((alike, SLACK, "of its kind"), (settled, SLACK_ANY_KIND, "of any kind")):
        if len(group) >= MIN_WITNESSES:
            fastest = max(other.rate for other in group)
            if own.vertices > slack * fastest * own.seconds:
                reason = f"{own.vertices:,} vertices in {own.seconds:.3g} s since its first lease, more than"
                return True, f"{reason} {slack:g} times what the fastest other worker {whose} trains"
    return False, "it can have trained that"


def quarantine(flagged: Sequence[bool], others: Sequence[Sequence[bool]]) -> tuple[bool, str]:
    """Whether a worker is trusted no more, given which of its last pushes and of each other worker's were blamed."""
    mine, known = sum(flagged), [each for each in others if each]
    theirs, all_theirs = sum(map(sum, known)), sum(map(len, known))
    if mine < MIN_FLAGS or len(known) < MIN_WITNESSES:
        return False, f"{mine} of its last {len(flagged)} pushes were blamed"
    if mine * all_theirs < FLAG_RATIO * theirs * len(flagged):
        return False, f"{mine} of its last {len(flagged)} pushes were blamed, and so are those of others"
    return True, f"{mine} of its last {len(flagged)} pushes are not what others bring"


REFRESH_S = (
    2.0  # between two looks at everybody's pace: with ten thousand workers one costs as much as a hundred pushes
)


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
    flagged: deque[bool] = field(default_factory=lambda: deque(maxlen=MAX_PUSHES))

    def pace(self) -> CreditPace:
        """As a measure for others: that of a whole life would be too slow, for what the masters before this one saw
        of it is not in it."""
        return CreditPace(self.seen, self.last_s - (self.seen_s or 0.0), self.pushes, self.kind)


ShouldCheck = Callable[[float], bool]  # whether to check a push, given the share that should be at least


def sampler(share: float, chance: Callable[[], float]) -> ShouldCheck | None:
    """Return a draw for each push by `chance`, from [0, 1); None where `share` is 0, and none is checked."""
    return (lambda least: chance() < max(share, least)) if share > 0 else None


class Trust:
    """The conduct of the workers of one run, and spot checks of their pushes where these are ever `due`; `group_of`
    gives the group of a tensor by its name in files. Methods must be called inside the ledger's transaction."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        workers: WorkerTable,
        events: Events,
        group_of: Callable[[str], str],
        due: ShouldCheck | None,
    ) -> None:
        self._ledger = ledger = store.ledger
        self._table = workers
        self._checks = None
        if due is not None:
            from master.trust.spot_checks import SpotChecks  # deferred: a run that asks for none does not load them

            self._checks = SpotChecks(store, leases, workers, events, group_of, due, self.quarantine)
        self._workers: dict[str, _Conduct] = {}
        self._fastest: list[tuple[str, CreditPace]] = []  # as of the last look
        self._slowest = math.inf  # of these: who is no faster is too fast for nobody
        self._look_s = 0.0  # when to look again
        self._quarantined = set(ledger.quarantined())

    def quarantined(self, worker: str) -> bool:
        """Whether a worker gets no lease, and nothing of it is taken."""
        return worker in self._quarantined

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
        pace = CreditPace(own.vertices + vertices, seconds, own.pushes + 1, record.measured.kind)
        fast, reason = too_fast(pace, [other for name, other in self._fastest if name != record.name])
        return reason if fast else None

    def _look(self, now: float) -> None:
        """Find the fastest of each kind that can be compared with: enough of them without the one that is compared."""
        kinds: dict[str, list[tuple[str, CreditPace]]] = {}
        for name, each in self._workers.items():
            if each.pushes >= MIN_PUSHES:
                kinds.setdefault(each.kind, []).append((name, each.pace()))
        most = [heapq.nlargest(MIN_WITNESSES + 1, paces, key=lambda named: named[1].rate) for paces in kinds.values()]
        self._fastest = [named for paces in most for named in paces]
        self._slowest = min((pace.rate for _, pace in self._fastest), default=math.inf)
        self._look_s = now + REFRESH_S

    def credit(self, record: WorkerRecord, vertices: int, since_s: float | None, now: float, *, flagged: bool) -> None:
        """A push of a worker was merged that it trained `since_s`, None for what it began in an earlier master's time;
        one that was `flagged` for its length is written down as such already."""
        own = self._of(record)
        if own is None:
            return
        own.vertices, own.kind, own.last_s = own.vertices + vertices, record.measured.kind, now
        if own.seen_s is None:
            own.seen_s = now if since_s is None else since_s
        if since_s is not None:
            own.seen, own.pushes = own.seen + vertices, own.pushes + 1
        if not flagged:
            own.flagged.append(False)

    def flag(self, record: WorkerRecord, lease: LeaseState, reason: str, now: float) -> None:
        """Write down that a push was shortened or refused for what is in it; too often, and its worker is
        quarantined."""
        self._ledger.add_flag(record.name, lease.id, reason, now)
        own = self._workers.setdefault(record.name, _Conduct(now, record.measured.kind))
        own.flagged.append(True)
        others = [each.flagged for name, each in self._workers.items() if name != record.name]
        out, why = quarantine(own.flagged, others)
        if out:
            self.quarantine(record.name, f"{why}; the last one: {reason}", now)

    def quarantine(self, worker: str, reason: str, now: float) -> None:
        """Trust a worker no more. Idempotent."""
        if worker in self._quarantined:
            return
        because = f"{reason}{self._stays(worker)}"
        self._ledger.quarantine(worker, because, now)
        self._quarantined.add(worker)
        self._table.lose(self._table.of(worker), GiveUpReason.FLAGGED, because)

    def _stays(self, worker: str) -> str:
        """Say what of a worker's pushes is in the replica, and how a person takes it out."""
        first, vertices = self._ledger.credited_to(worker)
        before = [point.version for point in self._ledger.rollback_points() if point.version < first]
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
        if record.measured.message_s is None:
            return None
        own = self._workers.get(record.name)
        if own is None:
            own = self._workers[record.name] = _Conduct(record.measured.message_s, record.measured.kind)
        return own

    # --- spot checks

    @property
    def versions(self) -> Collection[int]:
        """Versions that somebody is to begin from."""
        return () if self._checks is None else self._checks.versions

    def assignment(self, record: WorkerRecord, sync: Sync, now: float) -> tuple[Span, str] | None:
        """Return (the range that a worker that wants work is to train next, why); None where none is meant for it."""
        if self._checks is None or not sync.wants or sync.leaving or now < record.faults.avoided_until_s:
            return None
        return self._checks.assignment(record)

    def reserve(self, record: WorkerRecord, lease: LeaseState | None) -> None:
        """Keep the range for a worker that was `assignment`, and was granted this lease; None: it does first what it
        holds."""
        if self._checks is not None:
            self._checks.reserve(record, lease)

    def start(self, lease: LeaseState | None) -> Start | None:
        """Return what a granted lease begins from; None where it goes on from what its worker has."""
        return None if self._checks is None or lease is None else self._checks.start(lease)

    def hold_back(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Return why a push that could be merged is kept, None to merge it; `at` is (how far it goes, its base)."""
        return None if self._checks is None else self._checks.hold_back(record, lease, content, at, now)
