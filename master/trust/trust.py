"""Trust in workers: rejects implausible work and quarantines workers. It is the only entrance to this package.

The decisions rest on the master's clock and on what other workers do; a worker's own report of its speed is no
evidence. Spot checks are reached through here, too, and are loaded only for runs that ask for them.
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


#: Factors over the fastest other worker from which on a worker is too fast: on its kind of machine, and on any kind.
SLACK, SLACK_ANY_KIND = 10.0, 100.0
#: Other workers that must be known before a worker is compared with them.
MIN_WITNESSES = 2
#: Pushes that each of them must have made.
MIN_PUSHES = 3
#: Recent pushes of each worker that are kept.
MAX_PUSHES = 8
#: Flagged pushes among these from which on a worker is quarantined.
MIN_FLAGS = 3
#: Factor over the flag rate of the others that is required, too: where all are flagged, the program is the cause.
FLAG_RATIO = 4.0


@dataclass(frozen=True)
class CreditPace:
    """The pace at which a worker was credited."""

    vertices: int
    #: since it was first given work
    seconds: float
    pushes: int
    #: of its machine
    kind: str = ""

    @property
    def rate(self) -> float:
        """Vertices per second."""
        return self.vertices / self.seconds if self.seconds > 0 else 0.0


def too_fast(own: CreditPace, others: Sequence[CreditPace]) -> tuple[bool, str]:
    """Return whether a worker pushes more than a machine like its own can have trained, and why.

    `own` includes the push in question. Nothing is too fast before two other workers are known.
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
    """Return whether a worker is quarantined, and why, given the flags of its last pushes and of those of each other
    worker."""
    mine, known = sum(flagged), [each for each in others if each]
    theirs, all_theirs = sum(map(sum, known)), sum(map(len, known))
    if mine < MIN_FLAGS or len(known) < MIN_WITNESSES:
        return False, f"{mine} of its last {len(flagged)} pushes were flagged"
    if mine * all_theirs < FLAG_RATIO * theirs * len(flagged):
        return False, f"{mine} of its last {len(flagged)} pushes were flagged, and so are those of others"
    return True, f"{mine} of its last {len(flagged)} pushes are not what others bring"


#: Seconds between two updates of the fastest paces: with ten thousand workers one costs as much as a hundred pushes.
REFRESH_S = 2.0


@dataclass
class _Conduct:
    """History of one worker."""

    #: start of its work, perhaps under an earlier master
    began_s: float
    #: of its machine
    kind: str
    #: credited since `began_s`
    vertices: int = 0
    #: start of the work that this master saw
    seen_s: float | None = None
    #: last credit
    last_s: float = 0.0
    #: vertices of the work that this master saw, and its pushes
    seen: int = 0
    pushes: int = 0
    flagged: deque[bool] = field(default_factory=lambda: deque(maxlen=MAX_PUSHES))

    def pace(self) -> CreditPace:
        """Return the pace as a measure for others, over the time that this master saw. Over the whole life it would be
        too slow, because the vertices that earlier masters credited are not in it."""
        return CreditPace(self.seen, self.last_s - (self.seen_s or 0.0), self.pushes, self.kind)


#: Decides whether to check a push, given the minimum share of pushes to check.
ShouldCheck = Callable[[float], bool]


def sampler(share: float, chance: Callable[[], float]) -> ShouldCheck | None:
    """Return a function that samples pushes with `chance`, which draws from [0, 1); None where `share` is 0: no
    checks."""
    return (lambda least: chance() < max(share, least)) if share > 0 else None


class Trust:
    """The history of a run's workers, and spot checks of their pushes if `due` is given.

    `group_of` maps a tensor's name in files to its group. Methods must be called inside the ledger's transaction.
    """

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
        #: the fastest workers of each kind, updated every `REFRESH_S`
        self._fastest: list[tuple[str, CreditPace]] = []
        #: rate of the slowest of these: a quick test that most pushes pass
        self._slowest = math.inf
        self._refresh_at_s = 0.0
        #: a copy of the ledger's table, changed only by `quarantine`
        self._quarantined = set(ledger.quarantined())

    def quarantined(self, worker: str) -> bool:
        """Return whether a worker gets no lease, and nothing of it is merged."""
        return worker in self._quarantined

    def check(self, record: WorkerRecord, vertices: int, now: float) -> str | None:
        """Return why a worker cannot have trained so many vertices; None if it can."""
        own = self._of(record)
        if own is None:
            return None
        if now >= self._refresh_at_s:
            self._refresh(now)
        seconds = now - own.began_s
        if own.vertices + vertices <= self._slowest * seconds:
            return None
        pace = CreditPace(own.vertices + vertices, seconds, own.pushes + 1, record.measured.kind)
        fast, reason = too_fast(pace, [other for name, other in self._fastest if name != record.name])
        return reason if fast else None

    def _refresh(self, now: float) -> None:
        """Find the fastest workers of each kind."""
        kinds: dict[str, list[tuple[str, CreditPace]]] = {}
        for name, each in self._workers.items():
            if each.pushes >= MIN_PUSHES:
                kinds.setdefault(each.kind, []).append((name, each.pace()))
        # One more than the witnesses: the worker that is compared may be among them.
        most = [heapq.nlargest(MIN_WITNESSES + 1, paces, key=lambda named: named[1].rate) for paces in kinds.values()]
        self._fastest = [named for paces in most for named in paces]
        self._slowest = min((pace.rate for _, pace in self._fastest), default=math.inf)
        self._refresh_at_s = now + REFRESH_S

    def credit(self, record: WorkerRecord, vertices: int, since_s: float | None, now: float, *, flagged: bool) -> None:
        """Record a merged push that was trained since `since_s`; None for work that began under an earlier master. A
        `flagged` push was recorded by `flag`."""
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
        """Record that a push was shortened or refused for its content, and quarantine its worker if that happens too
        often."""
        self._ledger.add_flag(record.name, lease.id, reason, now)
        own = self._workers.setdefault(record.name, _Conduct(now, record.measured.kind))
        own.flagged.append(True)
        others = [each.flagged for name, each in self._workers.items() if name != record.name]
        out, why = quarantine(own.flagged, others)
        if out:
            self.quarantine(record.name, f"{why}; the last one: {reason}", now)

    def quarantine(self, worker: str, reason: str, now: float) -> None:
        """Quarantine a worker. Idempotent."""
        if worker in self._quarantined:
            return
        because = f"{reason}{self._rollback_advice(worker)}"
        self._ledger.quarantine(worker, because, now)
        self._quarantined.add(worker)
        self._table.lose(self._table.of(worker), GiveUpReason.FLAGGED, because)

    def _rollback_advice(self, worker: str) -> str:
        """Return how much of a worker's work is in the replica, and the command that removes it."""
        first, vertices = self._ledger.credited_to(worker)
        before = [point.version for point in self._ledger.rollback_points() if point.version < first]
        if not vertices or not before:
            return ""
        back = f"{command('rollback', self._ledger.path.parent)} --to v{max(before)}"
        return f"; its {vertices:,} vertices stay credited; to take the run back to before them: {back}"

    def forget(self, worker: str) -> None:
        """Drop a worker that has ended from the comparison. Idempotent."""
        self._workers.pop(worker, None)

    def _of(self, record: WorkerRecord) -> _Conduct | None:
        """Return the history of a worker; None with its first message, because the time that its work took is unknown
        then."""
        if record.measured.message_s is None:
            return None
        own = self._workers.get(record.name)
        if own is None:
            own = self._workers[record.name] = _Conduct(record.measured.message_s, record.measured.kind)
        return own

    # --- spot checks

    @property
    def versions(self) -> Collection[int]:
        """Versions that repetitions start from, which must be kept."""
        return () if self._checks is None else self._checks.versions

    def assignment(self, record: WorkerRecord, sync: Sync, now: float) -> tuple[Span, str] | None:
        """Return (the range that a worker that wants work must train next, why); None for any range."""
        if self._checks is None or not sync.wants or sync.leaving or now < record.faults.avoided_until_s:
            return None
        return self._checks.assignment(record)

    def reserve(self, record: WorkerRecord, lease: LeaseState | None) -> None:
        """Reserve the range for a worker that got it by `assignment`, or record the lease that it was granted."""
        if self._checks is not None:
            self._checks.reserve(record, lease)

    def start(self, lease: LeaseState | None) -> Start | None:
        """Return the state that a granted lease starts from; None where it continues with the state that its worker
        has."""
        return None if self._checks is None or lease is None else self._checks.start(lease)

    def hold_back(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Return why a push that could be merged is held back; None to merge it. `at` is (position it reaches, its
        base)."""
        return None if self._checks is None else self._checks.hold_back(record, lease, content, at, now)
