"""What a report holds, in parts by subject. Each part is made by one function of `report.py` and shown by one of
`render.py`; this is the data, which knows neither.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from master.store.rundir import RunStatus
from master.views.distrust import AlteredPushes, AvoidedMachine, QuarantinedWorker
from master.views.money import Money


@dataclass(frozen=True)
class EpochReport:
    """One pass over the vertices. Times are seconds of the run, without those in which no master ran."""

    epoch: int  #: from 1
    vertices: int
    credited: int
    duplicated: int  #: credits given twice
    lost: int  #: vertices of a closed epoch without a credit
    left: int  #: those of an open one
    wasted: int  #: vertices trained under leases that ended before they were credited
    pushes: int
    staleness: float | None  #: the mean over the pushes
    opened_s: float
    closed_s: float | None
    metrics: dict[str, Any]
    logged: dict[str, float]  #: what f logged, means over credited vertices


@dataclass(frozen=True)
class MachineReport:
    """One place of the back end: how many workers it had, and how they were taken away."""

    machine: str
    workers: int
    sigterm: int
    sigkill: int


@dataclass(frozen=True)
class FailureReport:
    """The user's code failed on vertices `first` to `last` (-1 where nobody can say which) of an epoch, from 1: who
    failed, on which machine, and what was decided on it."""

    at_s: float
    worker: str
    epoch: int
    message: str
    first: int
    last: int
    machine: str
    reason: str


@dataclass(frozen=True)
class FailingWorker:
    """A worker whose last `failures` tries all failed, so that it was left without a lease for a while."""

    worker: str
    machine: str
    failures: int
    because: str


@dataclass(frozen=True)
class RunRequest:
    """What was asked for, and how it stands."""

    run_dir: str
    status: RunStatus
    stopped_because: str | None
    program: str
    backend: str
    vertices: int  #: of one epoch
    epochs_wanted: int | None
    workers: int  #: that were requested


@dataclass(frozen=True)
class LifeCounts:
    """The processes that were started, and how they ended."""

    lives: int
    kills: int  #: `sigterm` + `sigkill`
    sigterm: int  #: warned first
    sigkill: int  #: without warning
    crashed: int  #: ended by themselves
    masters: int


@dataclass(frozen=True)
class RunSpeed:
    """How long it took, and what came of that time."""

    wall_s: float
    worker_s: float  #: that all workers lived
    #: the share of `worker_s` that credited vertices took at the speed that each worker says it trains at, but no
    #: longer than it lived
    goodput: float | None
    flops: float | None  #: floating-point operations per second of credited work
    flops_per_vertex: float | None
    vertices_per_s: float | None


@dataclass(frozen=True)
class CreditSums:
    """What was credited, of all epochs, and what it took to bring it."""

    credited: int
    duplicated: int
    lost: int
    wasted: int
    pushes: int
    repetitions: int  #: how often a push was trained again for a check
    versions: int
    staleness: float | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Choices:
    """What the run chose by itself, and why."""

    asked: int | None  #: so many of the workers that are wanted were asked for at last, None: all
    asked_because: str | None
    helpful: int | None  #: more workers would hardly help, as far as the pushes show; None where they do not
    helpful_because: str | None
    settings: list[str]  #: which batch and learning rates workers use in place of the program's, as it was logged
    placement: str | None
    stopped_early: str | None  #: why it ended before its last epoch, None where it did not
    best: dict[str, Any] | None  #: version, epoch, goal and value of the replica that is kept as the best
    sizing: str | None  #: what sizes the chunks have at last, and why; None before lifetimes were fitted


@dataclass(frozen=True)
class RunCosts:
    """What was paid."""

    money: Money | None  #: for instances that the run launched itself, None where it launched none


@dataclass(frozen=True)
class Troubles:
    """What failed where, and who is trusted no more."""

    machines: list[MachineReport]
    failures: list[FailureReport]
    avoided: list[FailingWorker]
    altered_pushes: list[AlteredPushes]
    quarantined: list[QuarantinedWorker]
    avoided_machines: list[AvoidedMachine]


@dataclass(frozen=True)
class Figures(Troubles, RunCosts, Choices, CreditSums, RunSpeed, LifeCounts, RunRequest):
    """All parts, in the order from the last to the first, and the epochs."""

    epochs: list[EpochReport]

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, as `gridml report --json` prints them."""
        return dataclasses.asdict(self)
