"""Spot checks: pushes that are kept instead of merged, until others have trained the same; and what follows.

The push that is checked is refused, like any other, so what it covers is free again and credited once, to whoever
trains it again. One check is under way at a time: it holds a replica's worth of tensors or two, and a version. It is
forgotten when its range goes to somebody else, because nothing else is left, and with the master.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from gridml.errors import DamagedError
from gridml.protocol.messages import NO_PUSH, Pace
from gridml.protocol.push import PushContent, ReplicaPart
from master.leases.leases import Leases
from master.state.failures import Candidate
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.rundir import EventFacts
from master.store.store import Store
from master.trust.likeness import Likeness, closer, convicted, find, likeness, strays, usual
from master.trust.trust import Due

TOPIC = "spot check"  # of events
REMEMBERED = 16  # checks of each machine that are looked back on


@dataclass(frozen=True)
class Start:
    """What a worker trains afresh from: a version, all of it that the lease touches, and the pace to keep."""

    version: int
    replica: ReplicaPart
    pace: Pace


@dataclass(frozen=True)
class Testimony:
    """What a worker says that training a range comes to; `place` is its machine, or its name where all are on one."""

    worker: str
    place: str
    content: PushContent


@dataclass
class Check:
    """A range that is trained again from version `base` at `pace`, and what was `said` of it: by the push, then by its
    repetitions.

    While nobody has taken it `lease` is None; `promised` is the worker that takes it once it has done what it holds.
    Who pushed it may repeat it, too, when nobody else is `left` that has not.
    """

    span: Span
    base: int
    pace: Pace
    by_machine: bool  # the run has several
    said: list[Testimony] = field(default_factory=list)
    left: bool = True
    lease: int | None = None
    promised: str = ""

    def place(self, who: WorkerRecord | Candidate, name: str) -> str:
        return (self.by_machine and who.machine) or name

    def may_repeat(self, place: str) -> bool:
        """Whether it can still be repeated there: once everywhere."""
        spoken = self.said if self.left else self.said[1:]
        return all(testimony.place != place for testimony in spoken)


class SpotChecks:
    """Opens a check where one is `due`, given the share that should be at least, and judges it. Methods must be called
    inside the ledger's transaction."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        workers: WorkerTable,
        events: Events,
        group_of: Callable[[str], str],
        due: Due,
        quarantine: Callable[[str, str, float], None],
    ) -> None:
        self._store = store
        self._leases = leases
        self._workers = workers
        self._events = events
        self._group_of = group_of
        self._due = due
        self._distrust = quarantine
        self._check: Check | None = None
        self._odd: Counter[str] = Counter()  # how often what was said at a place was
        self._seen: defaultdict[str, deque[Likeness]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    @property
    def versions(self) -> set[int]:
        """Versions that somebody is to begin from."""
        return set() if self._check is None else {self._check.base}

    # --- who trains it again

    def appointed(self, record: WorkerRecord) -> tuple[Span, str] | None:
        """A worker that can train again what is checked is to do so: return the range, and why."""
        check = self._standing()
        if check is None or check.lease is not None or not check.may_repeat(check.place(record, record.name)):
            return None
        if check.promised != record.name and self._workers.get(check.promised) is not None:
            return None
        return check.span, f"a spot check of {check.said[0].worker}"

    def promise(self, record: WorkerRecord, lease: LeaseState | None) -> None:
        """Keep the range for a worker that was `appointed`, or that was granted it; nothing where that is another."""
        check = self._check
        assert check is not None, "only what is checked is appointed"
        if lease is None or (lease.epoch, lease.start, lease.stop) == (
            check.span.epoch,
            check.span.start,
            check.span.stop,
        ):
            check.promised, check.lease = record.name, None if lease is None else lease.id

    def start(self, lease: LeaseState) -> Start | None:
        """Return what a granted lease begins from; None where it goes on from what its worker has."""
        check = self._check
        if check is None or lease.id != check.lease:
            return None
        try:
            base = self._store.replica.base(check.base, self._store.ledger.sha256_of(check.base))
        except DamagedError:
            self._check = None
            return None
        return Start(check.base, base.part(lease.cut.touched), check.pace)

    # --- what they say

    def weigh(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Return why a push that could be merged is kept, None to merge it; `at` is (how far it goes, its base)."""
        upto, base = at
        check = self._standing()
        if check is not None and check.lease == lease.id:
            self._check = None  # unless it goes on
            try:
                if (lease.upto, upto, base) != (check.span.start, check.span.stop, check.base):
                    return None  # it was cut, or pushed in parts
                check.said.append(Testimony(record.name, check.place(record, record.name), content))
                return self._judge(check, lease, now)
            except DamagedError as error:  # the version that all of them started from cannot be read any more
                self._events.record(TOPIC, _facts(check, ()), f"it comes to nothing: {error}")
                return None
        if check is None and self._due(self._closer(record)):
            return self._open(record, lease, content, at, now)
        return None

    def _closer(self, record: WorkerRecord) -> float:
        """The share of the pushes of a worker to check at least."""
        place = next((each for each in (record.machine, record.name) if each in self._seen or each in self._odd), None)
        if place is None:
            return 0.0
        newest = self._seen[place][-1] if self._seen.get(place) else {}
        return closer(newest, self._odd[place], self._usual(place))

    def _usual(self, place: str) -> Likeness:
        """What is usual elsewhere."""
        return usual([[*seen] for other, seen in self._seen.items() if other != place])

    def _open(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Keep a push, if there is anybody else to repeat it."""
        upto, base = at
        machines = {candidate.machine for candidate in self._workers.ready(now)} | {record.machine}
        credited = self._store.ledger.credited_at(base) or 0
        pace = Pace(max(1, self._leases.live), credited, self._leases.epochs.total, NO_PUSH)
        check = Check(Span(lease.epoch, lease.upto, upto), base, pace, by_machine=len(machines) > 1)
        check.said.append(Testimony(record.name, check.place(record, record.name), content))
        return self._keep(check, lease, now) if self._anybody(check, now) else None

    def _anybody(self, check: Check, now: float) -> bool:
        """Whether there is anybody who could repeat it."""
        return any(check.may_repeat(check.place(each, each.worker)) for each in self._workers.ready(now))

    def _keep(self, check: Check, lease: LeaseState, now: float) -> str:
        """Leave the range to another worker."""
        reason = "kept for a spot check: another worker trains the same"
        self._leases.end(lease, now, reason)
        apart = self._store.ledger.set_apart(check.span)
        assert apart is not None, "what a lease left is free"
        check.span, check.lease, check.promised = apart, None, ""
        self._check = check
        return reason

    def _judge(self, check: Check, lease: LeaseState, now: float) -> str | None:
        span = check.span
        pushed, *repeated = check.said
        alike = {pair: self._likeness(check, *pair) for pair in combinations(range(1, len(check.said)), 2)}
        to_push = [self._likeness(check, 0, at) for at in range(1, len(check.said))]
        finding = find(to_push, alike, self._usual(pushed.place))
        where = f"[{span.start}, {span.stop}) of epoch {span.epoch + 1}"
        names = f"{pushed.worker} pushed {where}, {', '.join(each.worker for each in repeated)} repeated it"
        self._events.record(TOPIC, _facts(check, finding.odd), f"{names}: {finding.reason}", quiet=not finding.odd)
        if finding.again:
            check.left = True
            check.left = self._anybody(check, now)
            anybody = check.left or self._anybody(check, now)  # who pushed it, perhaps
            return self._keep(check, lease, now) if anybody else None
        if finding.likeness is not None:
            self._seen[pushed.place].append(finding.likeness)
            others = [[*seen] for place, seen in self._seen.items() if place != pushed.place]
            out, reason = strays([*self._seen[pushed.place]], others)
            if out:
                self._quarantine(pushed, reason, now)
        for testimony in (check.said[at] for at in finding.odd):
            self._odd[testimony.place] += 1
            out, reason = convicted(self._odd[testimony.place])
            if out:
                self._quarantine(testimony, reason, now)
        return None

    def _quarantine(self, testimony: Testimony, reason: str, now: float) -> None:
        """Trust a worker no more, or who has come in its place since; the next one there begins anew."""
        successors = [record.name for record in self._workers if record.alive and record.machine == testimony.place]
        there = [testimony.worker] if self._workers.get(testimony.worker) is not None else successors
        for worker in there:
            self._distrust(worker, reason, now)
        self._seen.pop(testimony.place, None)
        del self._odd[testimony.place]

    def _likeness(self, check: Check, one: int, other: int) -> Likeness:
        """Compare two steps. Raises DamagedError where the version that they were taken from is."""
        base = self._store.replica.base(check.base, self._store.ledger.sha256_of(check.base))
        contents = check.said[one].content, check.said[other].content
        return likeness(*contents, base, self._group_of, self._store.fields.values)

    def _standing(self) -> Check | None:
        """Return the check that is under way, if its range has gone to nobody else, and its version is there."""
        check, ledger = self._check, self._store.ledger
        if check is not None:
            there = ledger.is_free(check.span) if check.lease is None else ledger.leases.get(check.lease) is not None
            if not there or not ledger.has_version(check.base):
                self._forget()
        return self._check

    def _forget(self) -> None:
        if self._check is not None:
            self._store.ledger.put_back(self._check.span)
            self._check = None


def _facts(check: Check, odd: Sequence[int]) -> EventFacts:
    """Who pushed a range and who repeated it, and which of these were odd, by their places in what was said."""
    pushed, *repeated = (testimony.worker for testimony in check.said)
    return {
        "epoch": check.span.epoch + 1,
        "start": check.span.start,
        "stop": check.span.stop,
        "pushed": pushed,
        "repeated": repeated,
        "odd": [check.said[at].worker for at in odd],
    }
