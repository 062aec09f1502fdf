"""Trust in workers: rejects implausible work and quarantines workers. Other packages use only this module of `trust`.

The decisions rest on the master's clock and on what other workers do; a worker's own report of its speed is no
evidence. `Trust` also gives access to spot checks, whose module is loaded only for runs with spot checks.
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


#: A worker is too fast if its rate exceeds the rate of the fastest other worker by more than a factor: `SLACK` if that
#: worker's machine is of the same kind, `SLACK_ANY_KIND` for any machine.
SLACK, SLACK_ANY_KIND = 10.0, 100.0
#: Minimum number of other workers with which a worker is compared.
MIN_WITNESSES = 2
#: Minimum number of pushes that each of these other workers must have made.
MIN_PUSHES = 3
#: Number of recent pushes whose flags are kept per worker.
MAX_PUSHES = 8
#: Minimum number of flagged pushes among a worker's recent pushes for a quarantine.
MIN_FLAGS = 3
#: A flagged step that is at most this many times as long as the flagged step before it is an echo: it does not count.
#: Once a network fits its data, one surprising batch can make a step that is a hundred times as long as usual. After
#: it, an honest worker's momentum makes more long steps, each shorter than the last by the factor of the momentum. With
#: a momentum of 0.9, twenty long steps in a row were seen.
ECHO = 0.995
#: Minimum ratio for a quarantine: a worker's share of flagged pushes, divided by the share of the other workers. If the
#: pushes of all workers are flagged, the program is the cause.
FLAG_RATIO = 4.0


@dataclass(frozen=True)
class CreditPace:
    """The pace at which a worker was credited."""

    vertices: int
    #: seconds since the worker was first given work
    seconds: float
    pushes: int
    #: kind of the worker's machine
    kind: str = ""

    @property
    def rate(self) -> float:
        """Vertices per second."""
        return self.vertices / self.seconds if self.seconds > 0 else 0.0


def too_fast(own: CreditPace, others: Sequence[CreditPace]) -> tuple[bool, str]:
    """Return whether a worker pushes more than a machine like its own can have trained, and why.

    `own` includes the push in question. Until `MIN_WITNESSES` other workers can be compared, no worker is too fast.
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
    """Return whether to quarantine a worker, and why. `flagged` has the flags of the worker's last pushes,
    `others` has the same for each other worker."""
    mine, known = sum(flagged), [each for each in others if each]
    theirs, all_theirs = sum(map(sum, known)), sum(map(len, known))
    if mine < MIN_FLAGS or len(known) < MIN_WITNESSES:
        return False, f"{mine} of its last {len(flagged)} pushes were flagged"
    if mine * all_theirs < FLAG_RATIO * theirs * len(flagged):
        return False, f"{mine} of its last {len(flagged)} pushes were flagged, and so are those of others"
    return True, f"{mine} of its last {len(flagged)} pushes are not what others bring"


def is_echo(excess: float | None, before: float) -> bool:
    """Return whether a flagged step can be an effect of momentum after the flagged step `before` it.

    `excess` is the step's length per vertex; None if the push was flagged for another reason. `before` is the
    length per vertex of the preceding step if that was flagged as too long, else 0.

    A malicious worker could shorten its steps a little each time and never be quarantined. But such steps move the
    replica less than steps just below the bound, which are never flagged, because the master shortens a step beyond the
    bound to the usual length.
    """
    return excess is not None and excess <= ECHO * before


#: Seconds between two updates of the fastest paces. With ten thousand workers, an update costs as much as a hundred
#: pushes.
REFRESH_S = 2.0


@dataclass
class _WorkerHistory:
    """History of one worker."""

    #: start of its work, perhaps under an earlier master
    began_s: float
    #: kind of its machine
    kind: str
    #: vertices credited since `began_s`
    vertices: int = 0
    #: start of the work that this master saw; None: this master saw none yet
    seen_s: float | None = None
    #: time of its last credit
    last_s: float = 0.0
    #: vertices of the work that this master saw
    seen: int = 0
    #: pushes of the work that this master saw
    pushes: int = 0
    flagged: deque[bool] = field(default_factory=lambda: deque(maxlen=MAX_PUSHES))
    #: length per vertex of the last push's step if that push was flagged as too long; else 0
    excess: float = 0.0

    def pace(self) -> CreditPace:
        """Return the pace with which others are compared, over the time that this master saw. Over the whole life the
        pace would be too slow, because the vertices that earlier masters credited are missing."""
        return CreditPace(self.seen, self.last_s - (self.seen_s or 0.0), self.pushes, self.kind)


#: Decides whether to check a push, given the minimum share of pushes to check.
ShouldCheck = Callable[[float], bool]


def sampler(share: float, chance: Callable[[], float]) -> ShouldCheck | None:
    """Return a function that samples a share of the pushes; None if `share` is 0: no checks. `chance` draws from
    [0, 1)."""
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
            from master.trust.spot_checks import (
                SpotChecks,
            )  # deferred: a run without spot checks does not load the module

            self._checks = SpotChecks(store, leases, workers, events, group_of, due, self.quarantine)
        self._workers: dict[str, _WorkerHistory] = {}
        #: the fastest workers of each kind, updated every `REFRESH_S`
        self._fastest: list[tuple[str, CreditPace]] = []
        #: rate of the slowest of these, for a quick test that most pushes pass
        self._slowest = math.inf
        self._refresh_at_s = 0.0
        #: workers in quarantine: a copy of the ledger's table, changed only by `quarantine`
        self._quarantined = set(ledger.quarantined())

    def quarantined(self, worker: str) -> bool:
        """Return whether a worker is quarantined: it gets no lease, and its pushes are not merged."""
        return worker in self._quarantined

    def check(self, record: WorkerRecord, vertices: int, now: float) -> str | None:
        """Return why a worker cannot have trained this many vertices for a push; None: it can."""
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
        # One more than the witnesses, because the worker that is compared may be among them.
        most = [heapq.nlargest(MIN_WITNESSES + 1, paces, key=lambda named: named[1].rate) for paces in kinds.values()]
        self._fastest = [named for paces in most for named in paces]
        self._slowest = min((pace.rate for _, pace in self._fastest), default=math.inf)
        self._refresh_at_s = now + REFRESH_S

    def credit(self, record: WorkerRecord, vertices: int, since_s: float | None, now: float, *, flagged: bool) -> None:
        """Record a merged push that was trained since `since_s`; None: the work began under an earlier master.
        For a `flagged` push, `flag` has already recorded the flag."""
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
            own.excess = 0.0

    def flag(
        self, record: WorkerRecord, lease: LeaseState, reason: str, now: float, *, excess: float | None = None
    ) -> None:
        """Record that a push was shortened or refused for its content. Quarantine its worker after too many flags.
        `excess` is the length per vertex of a step before it was shortened; None: the push was not shortened."""
        self._ledger.add_flag(record.name, lease.id, reason, now)
        own = self._workers.setdefault(record.name, _WorkerHistory(now, record.measured.kind))
        echo, own.excess = is_echo(excess, own.excess), excess or 0.0
        if echo:
            return
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
        """Return a text for the end of a message: the number of vertices credited to a worker, and the command that
        undoes these credits; "" if there is nothing to undo."""
        first, vertices = self._ledger.credited_to(worker)
        before = [point.version for point in self._ledger.rollback_points() if point.version < first]
        if not vertices or not before:
            return ""
        back = f"{command('rollback', self._ledger.path.parent)} --to v{max(before)}"
        return f"; its {vertices:,} vertices stay credited; to take the run back to before them: {back}"

    def forget(self, worker: str) -> None:
        """Forget a worker that has ended: it is no longer compared with others. Idempotent."""
        self._workers.pop(worker, None)

    def _of(self, record: WorkerRecord) -> _WorkerHistory | None:
        """Return the history of a worker; None at its first message, because the duration of its work is not known
        then."""
        if record.measured.message_s is None:
            return None
        own = self._workers.get(record.name)
        if own is None:
            own = self._workers[record.name] = _WorkerHistory(record.measured.message_s, record.measured.kind)
        return own

    # --- spot checks

    @property
    def versions(self) -> Collection[int]:
        """Versions from which repetitions start. They must be kept."""
        return () if self._checks is None else self._checks.versions

    def assignment(self, record: WorkerRecord, sync: Sync, now: float) -> tuple[Span, str] | None:
        """Return (the range that a worker must train next if it wants work, why); None: it may train any range."""
        if self._checks is None or not sync.wants or sync.leaving or now < record.faults.avoided_until_s:
            return None
        return self._checks.assignment(record)

    def reserve(self, record: WorkerRecord, lease: LeaseState | None) -> None:
        """Record that a worker takes the range from `assignment`: without a lease yet, reserve the range for the
        worker; with a lease of this range, record the lease."""
        if self._checks is not None:
            self._checks.reserve(record, lease)

    def start(self, lease: LeaseState | None) -> Start | None:
        """Return the state from which the worker of a granted lease starts; None: it continues with its own state."""
        return None if self._checks is None or lease is None else self._checks.start(lease)

    def hold_back(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Return why a push that could be merged is held back; None: merge it. `at` is (position up to which the push
        trained, its base version)."""
        return None if self._checks is None else self._checks.hold_back(record, lease, content, at, now)
