"""Spot checks: hold back a push until other workers have repeated its training, then judge all results.

The checked push is refused, so its range is free again and is credited only once, to a worker that trains it again. At
most one check is open, because a check holds one or two replicas' worth of tensors and pins a version. A check is
dropped when its range is leased to a worker that does not repeat the push, which happens when no other range is left.
A check is not stored: it ends with the master.
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
from master.trust.similarity import Similarity, is_malicious, is_outlier, judge, min_share, similarity, usual_similarity
from master.trust.trust import ShouldCheck

TOPIC = "spot check"
#: Number of recent checks that are kept per machine.
MAX_CHECKS = 16


@dataclass(frozen=True)
class Start:
    """The state from which a worker repeats a push."""

    version: int
    #: everything that the lease touches, as of that version
    replica: ReplicaPart
    #: pace of the checked push, so that the repetition takes the same steps
    pace: Pace


@dataclass(frozen=True)
class RepeatedResult:
    """A push of a checked range: the original push or a repetition."""

    worker: str
    #: machine of the worker; if all workers are on one machine, the worker's name
    place: str
    content: PushContent


@dataclass
class Check:
    """A range that is trained again, and the results so far."""

    span: Span
    #: version from which all results start
    base: int
    pace: Pace
    #: True if the run has several machines: a place is then a machine, else a worker
    by_machine: bool
    #: first the checked push, then its repetitions
    results: list[RepeatedResult] = field(default_factory=list)
    #: True while another place can still repeat the push; if False, the place that pushed may repeat it, too
    left: bool = True
    #: lease of the repetition under way; None: no worker repeats the push now
    lease: int | None = None
    #: worker that gets the range as soon as it holds no other lease
    reserved_for: str = ""

    def place(self, worker: WorkerRecord | Candidate, name: str) -> str:
        return (self.by_machine and worker.machine) or name

    def may_repeat(self, place: str) -> bool:
        """Return whether this place may repeat the push. Each place does so at most once."""
        counted = self.results if self.left else self.results[1:]
        return all(result.place != place for result in counted)


class SpotChecks:
    """Opens a check of a push when `due` says so, and judges it. `due` gets the minimum share of pushes to check.

    Methods must be called inside the ledger's transaction.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        workers: WorkerTable,
        events: Events,
        group_of: Callable[[str], str],
        due: ShouldCheck,
        quarantine: Callable[[str, str, float], None],
    ) -> None:
        self._store = store
        self._leases = leases
        self._workers = workers
        self._events = events
        self._group_of = group_of
        self._due = due
        self._quarantine_worker = quarantine
        self._check: Check | None = None
        #: odd repetitions by place
        self._odd: Counter[str] = Counter()
        #: similarities of confirmed pushes by place, the newest last
        self._seen: defaultdict[str, deque[Similarity]] = defaultdict(lambda: deque(maxlen=MAX_CHECKS))

    @property
    def versions(self) -> set[int]:
        """Versions from which repetitions start. They must be kept."""
        return set() if self._check is None else {self._check.base}

    # --- assignment of repetitions

    def assignment(self, record: WorkerRecord) -> tuple[Span, str] | None:
        """Return (the range that this worker must repeat, why); None: it repeats nothing."""
        check = self._current_check()
        if check is None or check.lease is not None or not check.may_repeat(check.place(record, record.name)):
            return None
        if check.reserved_for != record.name and self._workers.get(check.reserved_for) is not None:
            return None
        return check.span, f"a spot check of {check.results[0].worker}"

    def reserve(self, record: WorkerRecord, lease: LeaseState | None) -> None:
        """Record that a worker takes the range from `assignment`: without a lease yet, reserve the range for the
        worker; with a lease of this range, record the lease. A lease of another range changes nothing."""
        check = self._check
        assert check is not None, "only the range of a check is assigned"
        if lease is None or (lease.epoch, lease.start, lease.stop) == (
            check.span.epoch,
            check.span.start,
            check.span.stop,
        ):
            check.reserved_for, check.lease = record.name, None if lease is None else lease.id

    def start(self, lease: LeaseState) -> Start | None:
        """Return the state from which the worker of a granted lease starts; None: it continues from its own state."""
        check = self._check
        if check is None or lease.id != check.lease:
            return None
        try:
            base = self._store.replica.base(check.base, self._store.ledger.sha256_of(check.base))
        except DamagedError:
            self._check = None
            return None
        return Start(check.base, base.part(lease.cut.touched), check.pace)

    # --- results

    def hold_back(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Return why a push that could be merged is held back; None: merge it. `at` is (position up to which the push
        trained, its base version)."""
        upto, base = at
        check = self._current_check()
        if check is not None and check.lease == lease.id:
            self._check = None  # `_judge` sets it again if another repetition is needed
            try:
                if (lease.upto, upto, base) != (check.span.start, check.span.stop, check.base):
                    return None  # the lease was cut or pushed in parts, so this is not the same training
                check.results.append(RepeatedResult(record.name, check.place(record, record.name), content))
                return self._judge(check, lease, now)
            except DamagedError as error:  # the base version cannot be read any more
                self._events.record(TOPIC, _facts(check, ()), f"dropped: {error}")
                return None
        if check is None and self._due(self._min_share(record)):
            return self._open(record, lease, content, at, now)
        return None

    def _min_share(self, record: WorkerRecord) -> float:
        """Return the minimum share of a worker's pushes to check."""
        place = next((each for each in (record.machine, record.name) if each in self._seen or each in self._odd), None)
        if place is None:
            return 0.0
        newest = self._seen[place][-1] if self._seen.get(place) else {}
        return min_share(newest, self._odd[place], self._usual_similarity(place))

    def _usual_similarity(self, place: str) -> Similarity:
        """Return the usual similarity at all other places."""
        return usual_similarity([[*seen] for other, seen in self._seen.items() if other != place])

    def _open(
        self, record: WorkerRecord, lease: LeaseState, content: PushContent, at: tuple[int, int], now: float
    ) -> str | None:
        """Open a check of a push if another worker can repeat it. Returns what `hold_back` returns."""
        upto, base = at
        machines = {candidate.machine for candidate in self._workers.ready(now)} | {record.machine}
        credited = self._store.ledger.credited_at(base) or 0
        gathered = record.assignment.is_gathered
        pace = Pace(max(1, self._leases.live), credited, self._leases.epochs.total, NO_PUSH, gathered=gathered)
        check = Check(Span(lease.epoch, lease.upto, upto), base, pace, by_machine=len(machines) > 1)
        check.results.append(RepeatedResult(record.name, check.place(record, record.name), content))
        return self._free_range(check, lease, now) if self._can_repeat(check, now) else None

    def _can_repeat(self, check: Check, now: float) -> bool:
        """Return whether any worker that is ready may repeat the push of a check."""
        return any(check.may_repeat(check.place(each, each.worker)) for each in self._workers.ready(now))

    def _free_range(self, check: Check, lease: LeaseState, now: float) -> str:
        """Keep the check open and free its range for another worker."""
        reason = "held back for a spot check: another worker trains the same"
        self._leases.end(lease, now, reason)
        span = self._store.ledger.isolate(check.span)
        assert span is not None, "the range of an ended lease is free"
        check.span, check.lease, check.reserved_for = span, None, ""
        self._check = check
        return reason

    def _judge(self, check: Check, lease: LeaseState, now: float) -> str | None:
        """Judge the results so far. Returns what `hold_back` returns."""
        span = check.span
        pushed, *repeated = check.results
        alike = {pair: self._similarity(check, *pair) for pair in combinations(range(1, len(check.results)), 2)}
        to_push = [self._similarity(check, 0, at) for at in range(1, len(check.results))]
        outcome = judge(to_push, alike, self._usual_similarity(pushed.place))
        where = f"[{span.start}, {span.stop}) of epoch {span.epoch + 1}"
        names = f"{pushed.worker} pushed {where}, {', '.join(each.worker for each in repeated)} repeated it"
        self._events.record(TOPIC, _facts(check, outcome.odd), f"{names}: {outcome.reason}", quiet=not outcome.odd)
        if outcome.again:
            check.left = True
            check.left = self._can_repeat(check, now)
            # If `left` is now False, the place that pushed may repeat, too, so a second call can return True.
            found = check.left or self._can_repeat(check, now)
            return self._free_range(check, lease, now) if found else None
        if outcome.similarity is not None:
            self._seen[pushed.place].append(outcome.similarity)
            others = [[*seen] for place, seen in self._seen.items() if place != pushed.place]
            out, reason = is_outlier([*self._seen[pushed.place]], others)
            if out:
                self._quarantine(pushed, reason, now)
        for result in (check.results[at] for at in outcome.odd):
            self._odd[result.place] += 1
            out, reason = is_malicious(self._odd[result.place])
            if out:
                self._quarantine(result, reason, now)
        return None

    def _quarantine(self, result: RepeatedResult, reason: str, now: float) -> None:
        """Quarantine the worker of a result, or, if that worker has ended, the workers on its machine. The checks
        of the place are forgotten, so later workers there start with a clean record."""
        successors = [record.name for record in self._workers if record.is_alive and record.machine == result.place]
        culprits = [result.worker] if self._workers.get(result.worker) is not None else successors
        for worker in culprits:
            self._quarantine_worker(worker, reason, now)
        self._seen.pop(result.place, None)
        del self._odd[result.place]

    def _similarity(self, check: Check, one: int, other: int) -> Similarity:
        """Compare two results. Raises DamagedError if their base cannot be read."""
        base = self._store.replica.base(check.base, self._store.ledger.sha256_of(check.base))
        contents = check.results[one].content, check.results[other].content
        return similarity(*contents, base, self._group_of, self._store.fields.values)

    def _current_check(self) -> Check | None:
        """Return the open check. Drop it if its range is neither free nor leased for the check, or if its base version
        was undone."""
        check, ledger = self._check, self._store.ledger
        if check is not None:
            held = ledger.is_free(check.span) if check.lease is None else ledger.leases.get(check.lease) is not None
            if not held or not ledger.has_version(check.base):
                self._forget()
        return self._check

    def _forget(self) -> None:
        if self._check is not None:
            self._store.ledger.rejoin(self._check.span)
            self._check = None


def _facts(check: Check, odd: Sequence[int]) -> EventFacts:
    """Facts of an event: the worker that pushed, those that repeated it, and those with an odd result."""
    pushed, *repeated = (result.worker for result in check.results)
    return {
        "epoch": check.span.epoch + 1,
        "start": check.span.start,
        "stop": check.span.stop,
        "pushed": pushed,
        "repeated": repeated,
        "odd": [check.results[at].worker for at in odd],
    }
