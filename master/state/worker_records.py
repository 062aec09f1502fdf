"""The records of workers, and their table. They live in one master's process; the facts that the next master needs are
in the ledger.

A worker's record has one object per subject. The docstring of each object names the only modules that may mutate it;
every module may read it. Times are in seconds of the run's clock.
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
    AVOID_AFTER,
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
    """State of a worker between its submission and its end. The ledger has the back end's states, which are finer."""

    QUEUED = auto()  # waits for a machine
    RUNNING = auto()  # on a machine, whether the back end can reach it or not
    SUSPENDED = auto()  # its machine has stopped the process, and can resume it
    HELD = auto()  # its job is on hold, and waits for its release
    DISMISSED = auto()  # asked to exit; it may push once more
    GIVEN_UP = auto()  # treated as lost, without a final event of the back end


# States in which a worker does not count for its home part of a placed graph, because it does not work there.
_AWAY = (WorkerStatus.SUSPENDED, WorkerStatus.HELD, WorkerStatus.DISMISSED, WorkerStatus.GIVEN_UP)


@dataclass(slots=True, eq=False)
class WorkerLife:
    """A worker's time on a machine, from its first RUNNING to its end: one observation for the fit of lifetimes."""

    began_s: float
    kind: str = ""  #: kind of its machine
    ended_s: float | None = None  #: None while it lives
    died: bool = False  #: True: the machine caused the end; False: the observation is censored


@dataclass(slots=True, eq=False)
class Liveness:
    """Signs of a worker's life and progress (`telemetry/staffing.py`, `sync/exchange.py`)."""

    last_s: float = 0.0  #: last sign of life: its start, a message, or a heartbeat with a change
    progress_s: float = 0.0  #: last sign of progress: its start, a message, or a heartbeat with a new position
    #: the heartbeat that was read after half of the permitted silence; if the worker's heartbeat differs from it when
    #: all of this time has passed, the worker is alive
    heartbeat: Heartbeat | None = None
    heartbeat_read: bool = False  #: `heartbeat` was read since `last_s`
    place: tuple[int, int] | None = None  #: (lease, position) of its last heartbeat
    check_s: float = 0.0  #: time of its next check; an entry with another time in the heap of checks is stale
    out_of_reach: bool = False  #: the back end cannot reach it

    def record_contact(self, now: float) -> None:
        """Record a sign of life and progress: the worker can be reached."""
        self.last_s, self.heartbeat_read, self.out_of_reach = now, False, False
        self.progress_s = now

    def record_heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Record a sign of life from a changed heartbeat, and a sign of progress if the position has changed."""
        self.last_s, self.heartbeat_read, self.heartbeat = now, False, None
        place = heartbeat.lease, heartbeat.upto
        if place != self.place:
            self.place, self.progress_s = place, now


@dataclass(slots=True, eq=False)
class Measured:
    """Measurements of a worker (`telemetry/measures.py`)."""

    submitted_s: float | None = None
    started_s: float | None = None
    message_s: float | None = None  #: time of its last message
    life: WorkerLife | None = None  #: None before it runs, and after its end
    kind: str = ""  #: kind of its machine
    speed: float | None = None  #: vertices per second of training; None: not known yet
    push_s: float = 0.0  #: seconds for which its last push kept it from training
    # Totals since its process started, from its last report. A decrease shows that another process has its name now.
    trained: int = 0  #: vertices
    train_s: float = 0.0  #: seconds of training
    begun: int = 0  #: chunks


@dataclass(slots=True, eq=False)
class ReplicaHeld:
    """The parts of the replica that a worker has (`sync/version_use.py`, `sync/replies.py`, `sync/rows.py`)."""

    number: int = -1  #: number of its last message; -1: none yet
    base: int = -1  #: version that it reported as its own
    #: versions in the replies to its last message; its next message says which reply it received
    answered_with: list[int] = field(default_factory=list)
    #: by number: leases for which rows of the replica were sent with the grant
    replicas_of: dict[int, LeaseState] = field(default_factory=dict)
    rows: RowsHeld = field(default_factory=RowsHeld)
    is_awaited: bool = False  #: it survived an earlier master, and has sent no message to this one


@dataclass(slots=True, eq=False)
class Contact:
    """State of the exchange of messages with a worker (`sync/exchange.py`, `sync/inbox.py`, `sync/replies.py`)."""

    has_reported: bool = False  #: it has sent a valid message, to this master or an earlier one
    disconnected: bool = False  #: it has sent a goodbye message
    malformed: int = 0  #: invalid messages
    damaged: int = 0  #: messages whose SHA-256 was wrong
    whole: int = 0  #: messages that could be read
    notes: set[str] = field(default_factory=set)  #: its notes that were shown (at most MAX_NOTES); none is shown twice
    bytes_down: int = 0  #: bytes of replies that are not in the ledger yet


@dataclass(slots=True, eq=False)
class MomentExchange:
    """State of the exchange of optimiser moments with a worker (`sync/moments.py`, `sync/pushes.py`)."""

    #: it was asked to include its moments in its next push; None: unknown, because only an earlier master knew
    asked: bool | None = False
    tainted: bool = False  #: one of its pushes was refused for its values, so it is sent no moments of other workers


@dataclass(slots=True, eq=False)
class AssignedWork:
    """Inputs for a worker's next lease (`leases/`), and its push interval (`sync/replies.py`)."""

    #: its home part: the part of a placed graph whose rows it has; changed only by `WorkerTable.assign_part`
    part: int | None = None
    cached: tuple[str, ...] | None = None  #: payloads in its cache when it last asked for work; None: it caches nothing
    #: the time by which the other workers should have trained the remaining work, if this worker is too slow for it
    idle_until_s: float | None = None
    push_every: int = 0  #: vertices between two pushes, as in the last reply
    #: vertices that a push may have whose step is added, at most those of the program's batch; 0: replicas are averaged
    max_added: int = 0
    others: float = 0.0  #: how far other workers go during a batch whose step is added, as in `Pace`
    is_gathered: bool = False  #: its pushes are gathered in rounds
    gathered: tuple[int, int] = -1, 0  #: (the last round into which it has pushed, vertices of these pushes)
    last_gathered: tuple[int, int] = -1, -1  #: (lease, number) of the last push that was gathered
    round: int = 0  #: the round that its next push is for (`sync/rounds.py`)


@dataclass(slots=True, eq=False)
class Faults:
    """Strikes against a worker (`sync/recovery.py`). A new worker begins with the strikes against its machine."""

    failures: int = 0  #: failures in a row, including those of earlier workers on its machine
    inherited: int = 0  #: how many of `failures` are those of earlier workers
    distrusted: int = 0  #: workers on its machine that were given up for what they sent
    avoided_until_s: float = 0.0  #: it gets no lease before this time

    @property
    def strikes(self) -> int:
        return strikes(self.failures, self.distrusted)

    def clear(self) -> None:
        """Clear the failures, but not the distrust."""
        self.failures, self.inherited, self.avoided_until_s = 0, 0, 0.0


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """Everything that the master knows about a worker, which is one attempt of a job."""

    name: str
    status: WorkerStatus | None = None  #: None: not submitted, or ended; changed only by `WorkerTable.move`
    suspended_s: float = 0.0  #: time of its last suspension
    machine: str = ""  #: host that it runs on; changed only by `WorkerTable.set_machine`
    signs: Liveness = field(default_factory=Liveness)
    measured: Measured = field(default_factory=Measured)
    contact: Contact = field(default_factory=Contact)
    held: ReplicaHeld = field(default_factory=ReplicaHeld)
    moments: MomentExchange = field(default_factory=MomentExchange)
    assignment: AssignedWork = field(default_factory=AssignedWork)
    faults: Faults = field(default_factory=Faults)

    @property
    def is_alive(self) -> bool:
        return self.status in (WorkerStatus.QUEUED, WorkerStatus.RUNNING)

    @property
    def is_present(self) -> bool:
        """True if it is queued, runs or is suspended."""
        return self.is_alive or self.status is WorkerStatus.SUSPENDED

    @property
    def candidate(self) -> Candidate:
        """The worker, as an argument of `may_lease`."""
        return Candidate(self.name, self.machine, self.measured.trained > 0 and not self.faults.failures)


class LostWorker(NamedTuple):
    """A worker to give up, and why."""

    record: WorkerRecord
    because: GiveUpReason
    reason: str


class WorkerTable:
    """The workers of one master: records of the workers that have not ended, and names of the workers that have ended.

    A run can have very many ended workers, so only their names are kept.
    """

    def __init__(self, requested: int = 1) -> None:
        #: number of workers that the user asked for; changed by `gridml scale`
        self.requested = requested
        #: largest number of workers that is useful in a run of this length (`telemetry/staffing.py`); None: no limit
        self.worker_limit: int | None = None
        self.machines = MachineTable()
        self._records: dict[str, WorkerRecord] = {}
        self._ended: set[str] = set()  # names, also of workers of earlier masters
        self._lost: list[LostWorker] = []
        self._reported: list[str] = []  # workers whose first message came since `take_reported`
        # Counts of `_records` by status, and by home part for workers that are not `_AWAY`. Turns and grants read them
        # often, so `move` and `assign_part` keep them exact, instead of a pass over all workers.
        self._counts: Counter[WorkerStatus | None] = Counter()
        self._at_home: Counter[int] = Counter()

    def lose(self, record: WorkerRecord, because: GiveUpReason, reason: str) -> None:
        """Schedule a worker to be given up by `Fleet.give_up`, at the next turn of the loop."""
        self._lost.append(LostWorker(record, because, reason))

    def take_lost(self) -> list[LostWorker]:
        """Return the workers to give up that were added since the last call, in the order of `GiveUpReason`."""
        order = [*GiveUpReason]
        lost = sorted(self._lost, key=lambda each: order.index(each.because))
        self._lost.clear()
        return lost

    def report(self, record: WorkerRecord) -> None:
        """Record that a worker has sent a valid message."""
        if not record.contact.has_reported:
            self._reported.append(record.name)
        record.contact.has_reported = True

    def take_reported(self) -> list[str]:
        """Return the workers whose first message came since the last call."""
        reported, self._reported = self._reported, []
        return reported

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(self._records.values())

    def __contains__(self, name: str) -> bool:
        """Return whether the run has or had a worker of that name."""
        return name in self._records or name in self._ended

    @property
    def target(self) -> int:
        """The number of workers to keep queued or running."""
        return self.requested if self.worker_limit is None else min(self.requested, self.worker_limit)

    def get(self, name: str) -> WorkerRecord | None:
        """Return the record of a worker that has not ended."""
        return self._records.get(name)

    def of(self, name: str) -> WorkerRecord:
        """Return the record of a worker. If the worker has ended or is unknown, return a new record outside the table,
        so that callers can record a late message without a check."""
        return self._records.get(name) or WorkerRecord(name)

    def is_current(self, record: WorkerRecord) -> bool:
        """Return whether a record is in the table, which means that its worker has not ended."""
        return self._records.get(record.name) is record

    def add(self, name: str) -> WorkerRecord:
        """Return the record of a worker. If there is no record, create it."""
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = WorkerRecord(name)
        return record

    def add_ended(self, names: Collection[str]) -> None:
        """Add the names of workers that ended under an earlier master."""
        self._ended.update(names)

    def move(self, record: WorkerRecord, status: WorkerStatus | None) -> None:
        """Change the status of a worker, and the counts."""
        self._counts[record.status] -= 1
        self._counts[status] += 1
        self._count_at_home(record, -1)
        record.status = status
        self._count_at_home(record, 1)

    def assign_part(self, record: WorkerRecord, part: int | None) -> None:
        """Set the home part of a worker; None: it has none. Does nothing for a record that is not in the table."""
        if self._records.get(record.name) is record:
            self._count_at_home(record, -1)
            record.assignment.part = part
            self._count_at_home(record, 1)

    def others_by_part(self, record: WorkerRecord, parts: int) -> list[int]:
        """Return, for each part, the number of workers whose home part it is. `record` is not counted."""
        others = [self._at_home[part] for part in range(parts)]
        if record.assignment.part is not None and record.status not in _AWAY:
            others[record.assignment.part] -= 1
        return others

    def _count_at_home(self, record: WorkerRecord, sign: int) -> None:
        if record.assignment.part is not None and record.status not in _AWAY:
            self._at_home[record.assignment.part] += sign

    def ready(self, now: float) -> Iterator[Candidate]:
        """Yield the workers that can take a range now or soon: they run, or are alive and have reported, and no pause
        after several failures keeps them from work."""
        for record in self._records.values():
            at_work = record.status is WorkerStatus.RUNNING or (record.contact.has_reported and record.is_alive)
            if at_work and (record.faults.strikes < AVOID_AFTER or record.faults.avoided_until_s <= now):
                yield record.candidate

    def succeeding(self) -> Iterator[WorkerRecord]:
        """Yield the workers that have trained something, have not failed since, and have fewer than `MAX_FAILURES`
        strikes."""
        for record in self._records.values():
            if (
                record.measured.trained > 0
                and record.is_alive
                and not record.faults.failures
                and record.faults.strikes < MAX_FAILURES
            ):
                yield record

    def any_usable(self) -> bool:
        """Return whether any worker with fewer than `MAX_FAILURES` strikes runs."""
        running = (record for record in self._records.values() if record.status is WorkerStatus.RUNNING)
        return any(record.faults.strikes < MAX_FAILURES for record in running)

    def resting(self, now: float) -> frozenset[str]:
        """Return the machines on which no worker may start now."""
        return self.machines.resting(now, self.others_work)

    def others_work(self, machine: str) -> bool:
        """Return whether any worker succeeds on a machine other than this one."""
        return any(record.machine != machine for record in self.succeeding())

    def may_lease(self, record: WorkerRecord, failed: Sequence[Failed], now: float) -> bool:
        """Return whether a worker may be leased a range with these open failures."""
        return not failed or may_lease(failed, record.candidate, lambda: self.ready(now))

    def set_machine(self, record: WorkerRecord, name: str) -> None:
        """Set the machine of a worker. The worker takes over the strikes against the machine."""
        if record.machine == name:
            return  # it runs again after it was out of reach or suspended; its strikes are newer than the machine's
        record.machine = name
        machine = self.machines.get(name)
        if machine is not None:
            if machine.failures > record.faults.failures:
                record.faults.failures = record.faults.inherited = machine.failures
            record.faults.distrusted = max(record.faults.distrusted, machine.distrusted)
            record.faults.avoided_until_s = max(record.faults.avoided_until_s, machine.avoided_until_s)

    def restore_failures(self, row: Mapping[str, Any]) -> None:
        """Restore, from its ledger row, the failures of a worker that survived the last master."""
        record = self.get(row["worker"])
        if record is not None:
            record.faults.failures, record.faults.avoided_until_s = row["failed"], row["avoided_until_s"] or 0.0

    def clear_failures(self) -> None:
        """Clear all strikes against workers and machines."""
        self.machines.clear()
        for record in self._records.values():
            record.faults.clear()
            record.faults.distrusted = 0

    def end(self, record: WorkerRecord) -> None:
        """Drop the record of a worker that has ended. Idempotent."""
        self.assign_part(record, None)
        self.move(record, None)
        self._records.pop(record.name, None)
        self._ended.add(record.name)

    def count(self, *statuses: WorkerStatus) -> int:
        """Return how many workers have one of these statuses."""
        return sum(self._counts[status] for status in statuses)

    @property
    def alive(self) -> int:
        """Number of workers that are queued or run."""
        return self.count(WorkerStatus.QUEUED, WorkerStatus.RUNNING)
