"""The records of workers, and their table: the memory of one master. What the next master needs is in the ledger.

A record has its parts by subject. Each part is changed by one part of the master, and read by any. Times are seconds
of the run's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from gridml.carriers.base import Heartbeat
from master.caching.known_rows import RowsHeld
from master.state.failures import (
    AVOIDED,
    MAX_FAILURES,
    Candidate,
    Failed,
    GiveUpReason,
    MachineTable,
    may_lease,
    strikes,
)
from master.state.lease_records import LeaseState


class WorkerStatus(Enum):
    """Where a worker is between its submission and its end; what a back end says in more detail is in the ledger."""

    QUEUED = auto()  # waits for a machine
    RUNNING = auto()  # on one, in reach or not
    SUSPENDED = auto()  # stands still on its machine, and lives
    HELD = auto()  # waits for a person
    DISMISSED = auto()  # was told to leave: it may push once more
    GIVEN_UP = auto()  # silent for too long: it counts as lost, though nobody has seen its end


# Workers that do not count among those at home in a part of a placed graph.
_AWAY = (WorkerStatus.SUSPENDED, WorkerStatus.HELD, WorkerStatus.DISMISSED, WorkerStatus.GIVEN_UP)


@dataclass(slots=True, eq=False)
class WorkerLife:
    """A worker's time on a machine: from its first RUNNING to its end."""

    began_s: float
    kind: str = ""
    ended_s: float | None = None
    died: bool = False


@dataclass(slots=True, eq=False)
class Liveness:
    """When a worker was last known to live and to get on (`telemetry/staffing.py`)."""

    last_s: float = 0.0  # the last sign of all: a message, a heartbeat that went on, its start
    headway_s: float = 0.0  # the last of a message, its start, a heartbeat that told of more trained
    heartbeat: Heartbeat | None = None  # as it was read when the worker had been silent for a while
    heartbeat_read: bool = False  # since the last sign
    place: tuple[int, int] | None = None  # (lease, position) that its heartbeats last told of
    look_s: float = 0.0  # when it is looked at next
    out_of_reach: bool = False  # the back end has lost sight of it

    def show(self, now: float) -> None:
        """Begin its silence anew; it is in reach, and gets on."""
        self.last_s, self.heartbeat_read, self.out_of_reach = now, False, False
        self.headway_s = now

    def show_heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Begin its silence anew: its process lives."""
        self.last_s, self.heartbeat_read, self.heartbeat = now, False, None
        place = heartbeat.lease, heartbeat.upto
        if place != self.place:
            self.place, self.headway_s = place, now


@dataclass(slots=True, eq=False)
class Measured:
    """How a worker lives and trains, as measured (`telemetry/measures.py`)."""

    submitted_s: float | None = None
    started_s: float | None = None
    message_s: float | None = None  # when its last message came
    life: WorkerLife | None = None
    kind: str = ""  # of its machine
    speed: float | None = None  # vertices per second of training
    push_s: float = 0.0  # what its last push kept it from training
    trained: int = 0  # vertices, and
    train_s: float = 0.0  # seconds of training in its process's life, as it last said
    begun: int = 0  # chunks


@dataclass(slots=True, eq=False)
class ReplicaHeld:
    """What of the replica a worker has (`sync/version_use.py`, `sync/replies.py`, `sync/rows.py`)."""

    number: int = -1  # of its last message
    base: int = -1  # the version that it says it holds
    answered_with: list[int] = field(default_factory=list)  # versions that answers to its last message told it of
    replicas_of: dict[int, LeaseState] = field(default_factory=dict)  # leases whose replicas came with their grant
    rows: RowsHeld = field(default_factory=RowsHeld)
    is_awaited: bool = False  # it lives on from an earlier master's time, and has not spoken to this one


@dataclass(slots=True, eq=False)
class Contact:
    """What came of a worker's messages, beside work (`sync/exchange.py`, `sync/inbox.py`)."""

    has_reported: bool = False  # a message of it made sense, to this master or an earlier one
    disconnected: bool = False
    malformed: int = 0  # messages of it that made no sense
    notes: set[str] = field(default_factory=set)  # of it that were shown, each once, and no more than MAX_NOTES
    bytes_down: int = 0  # of answers to it that the ledger does not know of yet


@dataclass(slots=True, eq=False)
class MomentExchange:
    """What passes of optimisers' moments between a worker and the master (`sync/moments.py`)."""

    #: whether its next push is to bring what its optimisers remember; None where only an earlier master would know
    asked: bool | None = False
    tainted: bool = False  # work of it was refused for what was in it: it is given nobody's any more


@dataclass(slots=True, eq=False)
class AssignedWork:
    """What a worker is given to train (`leases/`), and how often it is to push (`sync/replies.py`)."""

    part: int | None = None  # of a placed graph, which it is at home in: it has the rows of that
    cached: tuple[str, ...] | None = None  # payloads of chunks, as it said when it last wanted work
    idle_until_s: float | None = None  # by then the others should have done what it is too slow for
    push_every: int = 0  # vertices between two pushes, as it was last told


@dataclass(slots=True, eq=False)
class Faults:
    """What counts against a worker (`sync/recovery.py`)."""

    failures: int = 0  # of f in a row, by it and by those before it on its machine,
    before: int = 0  # of which by those
    distrusted: int = 0  # workers given up for what they sent: those before it on its machine, and it
    avoided_until_s: float = 0.0  # it gets no lease before

    @property
    def strikes(self) -> int:
        """All of it, in failures."""
        return strikes(self.failures, self.distrusted)

    def forget(self) -> None:
        """Let it begin anew, but for what it and others before it sent."""
        self.failures, self.before, self.avoided_until_s = 0, 0, 0.0


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker, one attempt of its job: everything that the master knows of it."""

    name: str
    status: WorkerStatus | None = None  # changed by `WorkerTable.move`, so that it is counted where it is
    suspended_s: float = 0.0  # since when it stands still, where it does
    machine: str = ""  # that it runs on
    signs: Liveness = field(default_factory=Liveness)
    measured: Measured = field(default_factory=Measured)
    contact: Contact = field(default_factory=Contact)
    held: ReplicaHeld = field(default_factory=ReplicaHeld)
    moments: MomentExchange = field(default_factory=MomentExchange)
    assignment: AssignedWork = field(default_factory=AssignedWork)
    faults: Faults = field(default_factory=Faults)

    @property
    def alive(self) -> bool:
        return self.status in (WorkerStatus.QUEUED, WorkerStatus.RUNNING)

    @property
    def present(self) -> bool:
        """Whether it is queued or runs, or would if its machine did not have it stand still."""
        return self.alive or self.status is WorkerStatus.SUSPENDED

    @property
    def candidate(self) -> Candidate:
        """What its being leased a range is decided by."""
        return Candidate(self.name, self.machine, self.measured.trained > 0 and not self.faults.failures)


class LostWorker(NamedTuple):
    """A worker to give up, for what, and why."""

    record: WorkerRecord
    because: GiveUpReason
    reason: str


class WorkerTable:
    """The workers of one master's life by name: records of those that have not ended, names of those that have."""

    def __init__(self, wanted: int = 1) -> None:
        self.wanted = wanted  # how many the run may have at once,
        self.worker_limit: int | None = None  # and for how many it is long enough, None: for any number
        self.machines = MachineTable()
        self._records: dict[str, WorkerRecord] = {}
        self._ended: set[str] = set()
        self._lost: list[LostWorker] = []
        self._counts: Counter[WorkerStatus | None] = Counter()
        self._at_home: Counter[int] = Counter()  # workers by the part that they are at home in

    def lose(self, record: WorkerRecord, because: GiveUpReason, reason: str) -> None:
        """Have a worker given up at the next turn."""
        self._lost.append(LostWorker(record, because, reason))

    def take_lost(self) -> list[LostWorker]:
        """Return the workers to give up since this was last asked, in the order of what they are given up for."""
        order = [*GiveUpReason]
        lost = sorted(self._lost, key=lambda each: order.index(each.because))
        self._lost.clear()
        return lost

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(self._records.values())

    def __contains__(self, name: str) -> bool:
        """Whether the run has or had a worker of that name."""
        return name in self._records or name in self._ended

    @property
    def asked(self) -> int:
        """How many the run is to have at once."""
        return self.wanted if self.worker_limit is None else min(self.wanted, self.worker_limit)

    def get(self, name: str) -> WorkerRecord | None:
        """Return the record of a worker that has not ended."""
        return self._records.get(name)

    def of(self, name: str) -> WorkerRecord:
        """Return a worker's record; a blank one, which nobody keeps, where there is none."""
        return self._records.get(name) or WorkerRecord(name)

    def expects(self, record: WorkerRecord) -> bool:
        """Whether a record is that of a worker that has not ended, and not one of nobody."""
        return self._records.get(record.name) is record

    def add(self, name: str) -> WorkerRecord:
        """Return the record of a worker that is expected; made anew if there is none."""
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = WorkerRecord(name)
        return record

    def add_ended(self, names: Collection[str]) -> None:
        """Take note of workers that ended under an earlier master."""
        self._ended.update(names)

    def move(self, record: WorkerRecord, status: WorkerStatus | None) -> None:
        """Change a worker's standing, so that it is counted where it is."""
        self._counts[record.status] -= 1
        self._counts[status] += 1
        self._count_at_home(record, -1)
        record.status = status
        self._count_at_home(record, 1)

    def settle(self, record: WorkerRecord, part: int | None) -> None:
        """Let a worker of this table be at home in a part, None for in none."""
        if self._records.get(record.name) is record:
            self._count_at_home(record, -1)
            record.assignment.part = part
            self._count_at_home(record, 1)

    def others_by_part(self, record: WorkerRecord, parts: int) -> list[int]:
        """Return how many others than a worker are at home in each part."""
        others = [self._at_home[part] for part in range(parts)]
        if record.assignment.part is not None and record.status not in _AWAY:
            others[record.assignment.part] -= 1
        return others

    def _count_at_home(self, record: WorkerRecord, sign: int) -> None:
        if record.assignment.part is not None and record.status not in _AWAY:
            self._at_home[record.assignment.part] += sign

    def ready(self, now: float) -> Iterator[Candidate]:
        """The workers that might take a range now, or will soon: those that are at work and do not fail."""
        for record in self._records.values():
            at_work = record.status is WorkerStatus.RUNNING or (record.contact.has_reported and record.alive)
            if at_work and (record.faults.strikes < AVOIDED or record.faults.avoided_until_s <= now):
                yield record.candidate

    def succeeding(self) -> Iterator[WorkerRecord]:
        """The workers that trained something, fail at nothing, and are on no machine that is avoided."""
        for record in self._records.values():
            if (
                record.measured.trained > 0
                and record.alive
                and not record.faults.failures
                and record.faults.strikes < MAX_FAILURES
            ):
                yield record

    def any_promises(self) -> bool:
        """Whether any worker runs that is on no machine that is avoided."""
        running = (record for record in self._records.values() if record.status is WorkerStatus.RUNNING)
        return any(record.faults.strikes < MAX_FAILURES for record in running)

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
            if machine.failures > record.faults.failures:
                record.faults.failures = record.faults.before = machine.failures
            record.faults.distrusted = max(record.faults.distrusted, machine.distrusted)
            record.faults.avoided_until_s = max(record.faults.avoided_until_s, machine.avoided_until_s)

    def recall_failures(self, row: Mapping[str, Any]) -> None:
        """Take up the failures of a worker that lives on, as its ledger row has them."""
        record = self.get(row["worker"])
        if record is not None:
            record.faults.failures, record.faults.avoided_until_s = row["failed"], row["avoided_until_s"] or 0.0

    def forget_failures(self) -> None:
        """Let every worker and every machine begin anew."""
        self.machines.clear()
        for record in self._records.values():
            record.faults.forget()
            record.faults.distrusted = 0

    def end(self, record: WorkerRecord) -> None:
        """Drop the record of a worker that has ended. Idempotent."""
        self.settle(record, None)
        self.move(record, None)
        self._records.pop(record.name, None)
        self._ended.add(record.name)

    def count(self, *statuses: WorkerStatus) -> int:
        """Return how many workers stand there."""
        return sum(self._counts[status] for status in statuses)

    @property
    def alive(self) -> int:
        """How many are queued or run."""
        return self.count(WorkerStatus.QUEUED, WorkerStatus.RUNNING)
