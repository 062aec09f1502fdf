"""The records of leases and of workers: one record each, and the table of each.

`LeaseTable` is the ledger's mirror: it stands as after the last commit, plus what the open transaction has changed.
`WorkerTable` is the memory of one master; what the next master needs of it is in the ledger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from gridml.carriers.base import Heartbeat
from gridml.model.order import Touched
from master.caching.known_rows import RowsHeld
from master.state.failures import AVOIDED, MAX_FAILURES, Candidate, Failed, GivenUpFor, MachineTable, may_lease, strikes
from master.state.spans import Span

FEW = 8  # leases at either end of the order that a look takes: one that leads nowhere must not hide the others


@dataclass(frozen=True)
class Footprint:
    """What a lease's chunk touches: the digest of the published chunk, the replicated vertices it touches, and the
    local ones that f may change under the lease, and the payloads that it borrows from, as workers name them."""

    sha256: str
    touched: Touched
    local: Touched
    borrows: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class LeaseState:
    """A lease: positions [start, stop) of `epoch`, credited up to `upto` by `sequence` pushes in the lease's `term`.

    `failed` are the failures of f that stand against its range, `trained` the vertices trained under it as far as is
    known, `version` is that of its last credit.
    `reserved_until_s` is set once it has ended: until then a later attempt of its job may bring what it left.
    The rest lives in memory: the versions that such an attempt may name as a base, how often its range was overtaken,
    when its holder was last credited, when it is expected to be done, what it touches.
    """

    id: int
    term: int
    epoch: int
    start: int
    stop: int
    upto: int
    worker: str
    sequence: int = 0
    trained: int = 0
    version: int | None = None
    reserved_until_s: float | None = None
    failed: tuple[Failed, ...] = ()
    reserved_versions: tuple[int, ...] = ()
    overtaken: int = 0
    since_s: float | None = None
    due_s: float | None = None
    footprint: Footprint | None = None

    @property
    def left(self) -> int:
        """Vertices that are not credited."""
        return self.stop - self.upto

    @property
    def rest(self) -> Span:
        """The range that is not credited."""
        return Span(self.epoch, self.upto, self.stop, self.failed)

    @property
    def cut(self) -> Footprint:
        """What its chunk touches; a lease that this master answers for has one."""
        assert self.footprint is not None, f"the chunk of lease {self.id} was never cut"
        return self.footprint


class LeaseTable:
    """Open leases by number and by worker, in the order in which they are expected to be done, and the ended ones that
    have a reservation. Every change costs O(log n) of n leases at most.

    In the order, those that have become late come first, whatever was expected of their workers, and those that will
    take longest come last. What lies between them is on schedule as far as is known: a worker that has become slower
    since its lease was placed is found when it is late.
    """

    def __init__(self, leases: Iterable[LeaseState] = (), reserved: Iterable[LeaseState] = ()) -> None:
        self._open: dict[int, LeaseState] = {}
        self._by_worker: dict[str, dict[int, LeaseState]] = {}  # nobody who holds none is in it
        self._expected = SortedList()  # of (due_s, lease): those due at once by their numbers
        self.reserved: dict[int, LeaseState] = {lease.id: lease for lease in reserved}
        self._reserved_spans: list[Span] | None = None  # until a reservation is made, used up or expires
        for lease in leases:
            self.add(lease)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[LeaseState]:
        return iter(self._open.values())

    def __getitem__(self, number: int) -> LeaseState:
        return self._open[number]

    def get(self, number: int) -> LeaseState | None:
        return self._open.get(number)

    def of(self, worker: str) -> Mapping[int, LeaseState]:
        """The leases that a worker holds, by number, in the order they were granted."""
        return self._by_worker.get(worker, {})

    @property
    def holders(self) -> int:
        """How many workers hold a lease."""
        return len(self._by_worker)

    def add(self, lease: LeaseState) -> None:
        """Open a lease (again); a reservation of it is used up."""
        if self.reserved.pop(lease.id, None) is not None:
            self._reserved_spans = None
        self._open[lease.id] = lease
        self._by_worker.setdefault(lease.worker, {})[lease.id] = lease

    def end(self, lease: LeaseState) -> None:
        """Close an open lease, whatever it was expected to do. It is remembered only if it is reserved."""
        del self._open[lease.id]
        held = self._by_worker[lease.worker]
        del held[lease.id]
        if not held:
            del self._by_worker[lease.worker]
        self._unplace(lease)
        if lease.reserved_until_s is not None:
            self.reserved[lease.id] = lease
            self._reserved_spans = None

    def expire(self, now: float) -> None:
        """Forget the reservations whose time is over."""
        for lease in [r for r in self.reserved.values() if r.reserved_until_s is None or r.reserved_until_s <= now]:
            del self.reserved[lease.id]
            self._reserved_spans = None

    def drop_reservations(self) -> None:
        """Forget all reservations."""
        self.reserved.clear()
        self._reserved_spans = None

    def reserved_spans(self) -> list[Span]:
        """Return what ended leases left that is reserved: it does not change while it is."""
        if self._reserved_spans is None:
            self._reserved_spans = [lease.rest for lease in self.reserved.values()]
        return self._reserved_spans

    def expect(self, lease: LeaseState, due_s: float = -math.inf) -> None:
        """Expect an open lease to be done at `due_s`, which is no NaN; without it the next look takes it among the
        first."""
        self._unplace(lease)
        lease.due_s = due_s
        self._expected.add((due_s, lease.id))

    def ends(self, but: Container[int] = ()) -> list[LeaseState]:
        """Return the `FEW` first leases in the expected order and the `FEW` last ones beside those in `but`, each once
        and in order from either end."""

        def few(order: Iterable[tuple[float, int]]) -> Iterable[int]:
            return islice((lease for _, lease in order if lease not in but), FEW)

        numbers = dict.fromkeys((*few(self._expected), *few(reversed(self._expected))))
        return [self._open[number] for number in numbers]

    def _unplace(self, lease: LeaseState) -> None:
        if lease.due_s is not None:
            self._expected.remove((lease.due_s, lease.id))
            lease.due_s = None


@dataclass(slots=True, eq=False)
class WorkerLife:
    """A worker's time on a machine, in seconds of the run's clock: from its first RUNNING to its end."""

    began_s: float
    kind: str = ""
    ended_s: float | None = None
    died: bool = False


class Standing(Enum):
    """Where a worker is between its submission and its end; what a back end says in more detail is in the ledger."""

    QUEUED = auto()  # waits for a machine
    RUNNING = auto()  # on one, in reach or not
    SUSPENDED = auto()  # stands still on its machine, and lives
    HELD = auto()  # waits for a person
    DISMISSED = auto()  # was told to leave: it may push once more
    GIVEN_UP = auto()  # silent for too long: it counts as lost, though nobody has seen its end


_AWAY = (Standing.SUSPENDED, Standing.HELD, Standing.DISMISSED, Standing.GIVEN_UP)  # from the part they work on


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker, one attempt of its job: everything that the master knows of it. Times in seconds of the run's clock."""

    name: str
    standing: Standing | None = None
    out_of_reach: bool = False  # the back end has lost sight of it
    suspended_s: float = 0.0  # since when it stands still, where it does
    took_leave: bool = False
    awaited: bool = False  # it lives on from an earlier master's time, and has not spoken to this one
    submitted_s: float | None = None
    started_s: float | None = None
    life: WorkerLife | None = None

    # Signs of life.
    spoke: bool = False  # a message of it made sense, to this master or an earlier one
    message_s: float | None = None  # when the last one came
    sign_s: float = 0.0  # the last of all: a message, a heartbeat that went on, its start
    heartbeat: Heartbeat | None = None  # as it was read when the worker had been silent for a while
    heartbeat_read: bool = False  # since the last sign of life
    look_s: float = 0.0  # when it is looked at next
    headway_s: float = 0.0  # the last of a message, its start, a heartbeat that told of more trained
    place: tuple[int, int] | None = None  # (lease, position) that its heartbeats last told of

    # What it has.
    number: int = -1  # of its last message
    base: int = -1  # the version that it says it holds
    answered_with: list[int] = field(default_factory=list)  # versions that answers to its last message told it of
    replicas_of: dict[int, LeaseState] = field(default_factory=dict)  # leases whose replicas came with their grant
    rows: RowsHeld = field(default_factory=RowsHeld)
    cached: tuple[str, ...] | None = None  # payloads of chunks, as it said when it last wanted work
    bytes_down: int = 0  # of answers to it that the ledger does not know of yet
    malformed: int = 0  # messages of it that made no sense
    notes: set[str] = field(default_factory=set)  # of it that were shown, each once, and no more than MAX_NOTES
    # Whether its next push is to bring what its optimisers remember; None where only an earlier master would know.
    moments_asked: bool | None = False
    spoilt: bool = False  # work of it was refused for what was in it: it is given nobody's moments any more

    # How it works.
    part: int | None = None  # of a placed graph, which it is at home in: it has the rows of that
    idle_until_s: float | None = None  # by then the others should have done what it is too slow for
    kind: str = ""  # of its machine
    speed: float | None = None  # vertices per second of training
    push_s: float = 0.0  # what its last push kept it from training
    push_every: int = 0  # vertices between two pushes, as it was last told
    trained: int = 0  # vertices, and
    train_s: float = 0.0  # seconds of training in its process's life, as it last said
    begun: int = 0  # chunks

    # How it fails.
    machine: str = ""  # that it runs on
    failures: int = 0  # of f in a row, by it and by those before it on its machine,
    failures_before: int = 0  # of which by those
    distrusted: int = 0  # workers given up for what they sent: those before it on its machine, and it
    avoided_until_s: float = 0.0  # it gets no lease before

    @property
    def alive(self) -> bool:
        return self.standing in (Standing.QUEUED, Standing.RUNNING)

    @property
    def present(self) -> bool:
        """Whether it is queued or runs, or would if its machine did not have it stand still."""
        return self.alive or self.standing is Standing.SUSPENDED

    def show_life(self, now: float) -> None:
        """Begin its silence anew; it is in reach, and gets on."""
        self.sign_s, self.heartbeat_read, self.out_of_reach = now, False, False
        self.headway_s = now

    @property
    def strikes(self) -> int:
        """What counts against it, in failures."""
        return strikes(self.failures, self.distrusted)

    @property
    def candidate(self) -> Candidate:
        """What its being leased a range is decided by."""
        return Candidate(self.name, self.machine, self.trained > 0 and not self.failures)

    def forget_failures(self) -> None:
        """Let it begin anew, but for what it and others before it sent."""
        self.failures, self.failures_before, self.avoided_until_s = 0, 0, 0.0

    def show_heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Begin its silence anew: its process lives."""
        self.sign_s, self.heartbeat_read, self.heartbeat = now, False, None
        place = heartbeat.lease, heartbeat.upto
        if place != self.place:
            self.place, self.headway_s = place, now


class Lost(NamedTuple):
    """A worker to give up, for what, and why."""

    record: WorkerRecord
    because: GivenUpFor
    reason: str


class WorkerTable:
    """The workers of one master's life by name: records of those that have not ended, names of those that have."""

    def __init__(self, wanted: int = 1) -> None:
        self.wanted = wanted  # how many the run may have at once,
        self.useful: int | None = None  # and for how many it is long enough, None: for any number
        self.machines = MachineTable()
        self._records: dict[str, WorkerRecord] = {}
        self._ended: set[str] = set()
        self._counts: Counter[Standing | None] = Counter()
        self._at_home: Counter[int] = Counter()  # workers by the part that they are at home in

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(self._records.values())

    def __contains__(self, name: str) -> bool:
        """Whether the run has or had a worker of that name."""
        return name in self._records or name in self._ended

    @property
    def asked(self) -> int:
        """How many the run is to have at once."""
        return self.wanted if self.useful is None else min(self.wanted, self.useful)

    def get(self, name: str) -> WorkerRecord | None:
        """Return the record of a worker that has not ended."""
        return self._records.get(name)

    def of(self, name: str) -> WorkerRecord:
        """Return a worker's record; a blank one, which nobody keeps, where there is none."""
        return self._records.get(name) or WorkerRecord(name)

    def expects(self, record: WorkerRecord) -> bool:
        """Whether a record is that of a worker that has not ended, and not one of nobody."""
        return self._records.get(record.name) is record

    def want(self, workers: int) -> None:
        """From now on the run may have so many at once."""
        self.wanted = workers

    def bound(self, useful: int | None) -> None:
        """The run is long enough for so many; None: for any number."""
        self.useful = useful

    def add(self, name: str) -> WorkerRecord:
        """Return the record of a worker that is expected; made anew if there is none."""
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = WorkerRecord(name)
        return record

    def add_ended(self, names: Collection[str]) -> None:
        """Take note of workers that ended under an earlier master."""
        self._ended.update(names)

    def move(self, record: WorkerRecord, standing: Standing | None) -> None:
        """Change a worker's standing, so that it is counted where it is."""
        self._counts[record.standing] -= 1
        self._counts[standing] += 1
        self._count_at_home(record, -1)
        record.standing = standing
        self._count_at_home(record, 1)

    def settle(self, record: WorkerRecord, part: int | None) -> None:
        """Let a worker of this table be at home in a part, None for in none."""
        if self._records.get(record.name) is record:
            self._count_at_home(record, -1)
            record.part = part
            self._count_at_home(record, 1)

    def others_at_home(self, record: WorkerRecord, parts: int) -> list[int]:
        """Return how many others than a worker are at home in each part."""
        others = [self._at_home[part] for part in range(parts)]
        if record.part is not None and record.standing not in _AWAY:
            others[record.part] -= 1
        return others

    def _count_at_home(self, record: WorkerRecord, sign: int) -> None:
        if record.part is not None and record.standing not in _AWAY:
            self._at_home[record.part] += sign

    def ready(self, now: float) -> Iterator[Candidate]:
        """The workers that might take a range now, or will soon: those that are at work and do not fail."""
        for record in self._records.values():
            at_work = record.standing is Standing.RUNNING or (record.spoke and record.alive)
            if at_work and (record.strikes < AVOIDED or record.avoided_until_s <= now):
                yield record.candidate

    def succeeding(self) -> Iterator[WorkerRecord]:
        """The workers that trained something, fail at nothing, and are on no machine that is avoided."""
        for record in self._records.values():
            if record.trained > 0 and record.alive and not record.failures and record.strikes < MAX_FAILURES:
                yield record

    def any_promises(self) -> bool:
        """Whether any worker runs that is on no machine that is avoided."""
        running = (record for record in self._records.values() if record.standing is Standing.RUNNING)
        return any(record.strikes < MAX_FAILURES for record in running)

    def resting(self, now: float) -> frozenset[str]:
        """The machines on which no worker is to start now."""
        return self.machines.resting(now, self.others_work)

    def others_work(self, machine: str) -> bool:
        """Whether anybody succeeds elsewhere than on a machine."""
        return any(record.machine != machine for record in self.succeeding())

    def may_lease(self, record: WorkerRecord, failed: Sequence[Failed], now: float) -> bool:
        """Whether a worker may be leased a range against which these failures stand."""
        return not failed or may_lease(failed, record.candidate, lambda: self.ready(now))

    def arrive(self, record: WorkerRecord, name: str) -> None:
        """Take note of the machine that a worker runs on: what counts against that counts against the worker."""
        if record.machine == name:
            return  # it is in reach again
        record.machine = name
        machine = self.machines.get(name)
        if machine is not None:
            if machine.failures > record.failures:
                record.failures = record.failures_before = machine.failures
            record.distrusted = max(record.distrusted, machine.distrusted)
            record.avoided_until_s = max(record.avoided_until_s, machine.avoided_until_s)

    def recall_failures(self, row: Mapping[str, Any]) -> None:
        """Take up the failures of a worker that lives on, as its ledger row has them."""
        record = self.get(row["worker"])
        if record is not None:
            record.failures, record.avoided_until_s = row["failed"], row["avoided_until_s"] or 0.0

    def forget_failures(self) -> None:
        """Let every worker and every machine begin anew."""
        self.machines.clear()
        for record in self._records.values():
            record.forget_failures()
            record.distrusted = 0

    def end(self, record: WorkerRecord) -> None:
        """Drop the record of a worker that has ended. Idempotent."""
        self.settle(record, None)
        self.move(record, None)
        self._records.pop(record.name, None)
        self._ended.add(record.name)

    def count(self, *standings: Standing) -> int:
        """Return how many workers stand there."""
        return sum(self._counts[standing] for standing in standings)

    @property
    def alive(self) -> int:
        """How many are queued or run."""
        return self.count(Standing.QUEUED, Standing.RUNNING)
