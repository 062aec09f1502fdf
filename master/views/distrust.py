"""Reads altered pushes, quarantined workers and avoided machines from the ledger, with reasons and times."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from master.state.failures import AVOID_AFTER, MIN_PAUSE_S, Alteration, long_rest_s, strikes


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
