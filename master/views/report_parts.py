"""Data of a report, in parts by subject; what the ledger says of altered pushes, quarantine and avoided machines."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from master.state.failures import AVOID_AFTER, MIN_PAUSE_S, Alteration, long_rest_s, strikes
from master.store.rundir import RunStatus
from master.views.money import Money


@dataclass(frozen=True)
class AlteredPushes:
    """A worker's pushes that were changed or rejected before merging."""

    worker: str
    machine: str
    shortened: int  #: pushes merged with shorter steps
    clipped: int  #: pushes whose steps a rule such as `clipped` shortened
    left_out: int  #: pushes merged without some tensor or optimiser moments
    unreadable: int  #: messages that came damaged or malformed
    refused: int  #: pushes that were rejected
    vertices: int  #: total vertices of all these pushes
    because: str  #: reason for the last one


@dataclass(frozen=True)
class QuarantinedWorker:
    """A worker whose pushes are rejected for the rest of the run."""

    worker: str
    machine: str
    because: str

    def __str__(self) -> str:
        where = f" on {self.machine}" if self.machine else ""
        return f"{self.worker}{where} is in quarantine for the rest of the run: {self.because}"


@dataclass(frozen=True)
class AvoidedMachine:
    """A machine on which workers failed, so that no worker starts there for a while."""

    machine: str
    distrusted: int  #: workers there that were given up for what they sent
    #: until the machine may get a worker; the last hour of a long rest applies only while others work
    seconds_left: float
    for_good: bool  #: the machine gets no worker for the rest of the run, while others work elsewhere
    because: str

    @property
    def until(self) -> str:
        """In words, how long no worker starts there."""
        if self.for_good:
            return "for the rest of the run, while others work elsewhere"
        return f"for {self.seconds_left:.0f} s more" if self.seconds_left > 0 else "until a while ago"

    def __str__(self) -> str:
        return f"{self.machine} is avoided {self.until}: {self.because}"


def read_altered(db: sqlite3.Connection) -> list[AlteredPushes]:
    """Return the workers with altered pushes, those with the most vertices first."""
    counts = ", ".join(f"sum(pushes * (how = '{how}'))" for how in Alteration)  # in the order of the fields above
    # With max(), SQLite takes bare columns such as `reason` from the row that has the maximum.
    rows = db.execute(
        f"SELECT worker, coalesce(machine, ''), {counts}, sum(vertices), reason, max(at_s) FROM altered "
        "LEFT JOIN workers USING (worker) GROUP BY worker ORDER BY sum(vertices) DESC, worker"
    )
    return [AlteredPushes(*row[:-1]) for row in rows]


def read_quarantined(db: sqlite3.Connection) -> list[QuarantinedWorker]:
    """Return the workers in quarantine, in the order in which they were put there."""
    rows = db.execute(
        "SELECT worker, coalesce(machine, ''), reason FROM quarantined LEFT JOIN workers USING (worker) ORDER BY at_s"
    )
    return [QuarantinedWorker(*row) for row in rows]


def read_avoided_machines(db: sqlite3.Connection, now: float) -> list[AvoidedMachine]:
    """Return the machines with enough failures to be avoided, sorted by name; `now` is by the ledger's clock."""
    rows = db.execute("SELECT name, failures, distrusted, avoided_until_s, reason FROM machines ORDER BY name")
    avoided = []
    for name, failures, distrusted, until_s, because in rows:
        longer_s = long_rest_s(failures, distrusted)
        for_good = math.isinf(longer_s)
        left_s = max(0.0, until_s + (0.0 if for_good else longer_s) - now)
        if strikes(failures, distrusted) >= AVOID_AFTER or left_s > MIN_PAUSE_S:
            avoided.append(AvoidedMachine(name, distrusted, left_s, for_good, because))
    return avoided


def now_avoided(machines: Iterable[AvoidedMachine]) -> list[AvoidedMachine]:
    """Return the machines on which no worker may start now."""
    return [machine for machine in machines if machine.for_good or machine.seconds_left > 0]


@dataclass(frozen=True)
class EpochReport:
    """One epoch. Times are seconds of the run; periods without a master are not counted."""

    epoch: int  #: from 1
    vertices: int
    credited: int
    duplicated: int  #: vertices credited more than once; always 0 unless there is a bug
    lost: int  #: vertices of a closed epoch without a credit; always 0 unless there is a bug
    left: int  #: vertices of an open epoch that are not credited yet
    wasted: int  #: vertices trained under leases that ended before they were credited
    pushes: int
    staleness: float | None  #: mean over the pushes
    opened_s: float
    closed_s: float | None
    metrics: dict[str, Any]
    logged: dict[str, float]  #: means of what f logged, over credited vertices


@dataclass(frozen=True)
class MachineReport:
    """A machine of the back end, and the numbers of workers that it ran."""

    machine: str
    workers: int  #: workers that started on the machine
    sigterm: int  #: workers taken away with a warning
    sigkill: int  #: workers taken away without a warning


@dataclass(frozen=True)
class FailureReport:
    """A failure of the user's code."""

    at_s: float
    worker: str
    epoch: int  #: from 1
    message: str
    first: int  #: first vertex of the failed batch; -1: not known
    last: int  #: last vertex of the failed batch; -1: not known
    machine: str
    reason: str  #: what the master decided, and why


@dataclass(frozen=True)
class FailingWorker:
    """A worker whose last `failures` attempts all failed, so that the worker got no lease for a while."""

    worker: str
    machine: str
    failures: int
    because: str


@dataclass(frozen=True)
class RunRequest:
    """The request of the user, and the status of the run."""

    run_dir: str
    status: RunStatus
    stopped_because: str | None
    program: str
    backend: str
    vertices: int  #: vertices of one epoch
    epochs_wanted: int | None
    workers: int  #: number of workers requested


@dataclass(frozen=True)
class LifeCounts:
    """Workers that were started, and how they ended."""

    lives: int
    kills: int  #: `sigterm` + `sigkill`
    sigterm: int  #: workers killed after a warning
    sigkill: int  #: workers killed without a warning
    crashed: int  #: workers that ended by themselves
    masters: int


@dataclass(frozen=True)
class RunSpeed:
    """Duration and throughput."""

    wall_s: float
    worker_s: float  #: total life of all workers
    #: share of `worker_s` spent on credited vertices, as computed from the speeds that workers report; a worker counts
    #: for at most its life
    goodput: float | None
    flops: float | None  #: floating-point operations per second of credited work
    flops_per_vertex: float | None
    vertices_per_s: float | None
    worth: float | None  #: time that one worker would need for the same progress, over `wall_s`; None: no estimate
    worth_because: str | None


@dataclass(frozen=True)
class CreditSums:
    """Totals over all epochs: credits, and the pushes that brought them."""

    credited: int
    duplicated: int
    lost: int
    wasted: int
    pushes: int
    repetitions: int  #: number of times that a worker repeated a push for a spot check
    versions: int
    staleness: float | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Choices:
    """Decisions of the run itself, with reasons."""

    asked: int | None  #: workers last requested, if fewer than the settings say; None: as many as the settings say
    asked_because: str | None
    settings: list[str]  #: batch and learning rates used instead of the program's
    placement: str | None
    stopped_early: str | None  #: reason why the run ended before the last epoch; None: it did not
    best: dict[str, Any] | None  #: version, epoch, goal and value of the best replica
    rounds: dict[str, int] | None  #: number of rounds, and of pushes that came too late for theirs; None: no rounds
    evaluated_on: str | None  #: of how many vertices the metrics are, if evaluate takes a sample
    sizing: str | None  #: the last chunk sizes and their reason; None: lifetimes are not fitted yet


@dataclass(frozen=True)
class RunCosts:
    """Cost of the run."""

    money: Money | None  #: cost of the instances that the run launched; None: it launched none


@dataclass(frozen=True)
class Troubles:
    """Failures, and the workers and machines that are avoided or distrusted."""

    machines: list[MachineReport]
    failures: list[FailureReport]
    avoided: list[FailingWorker]
    altered_pushes: list[AlteredPushes]
    quarantined: list[QuarantinedWorker]
    avoided_machines: list[AvoidedMachine]


@dataclass(frozen=True)
class Figures(Troubles, RunCosts, Choices, CreditSums, RunSpeed, LifeCounts, RunRequest):
    """A complete report. In JSON, fields come in the order of the base classes from right to left, then the epochs."""

    epochs: list[EpochReport]

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, as `gridml report --json` prints them."""
        return dataclasses.asdict(self)
