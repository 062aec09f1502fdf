"""Read who is trusted no more, and which machines get no worker: with the reason, and until when."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from master.decisions.failures import AVOIDED, MAX_FAILURES, strikes


@dataclass(frozen=True)
class QuarantinedWorker:
    """A worker of which nothing is taken any more, for the rest of the run."""

    worker: str
    machine: str
    because: str

    def __str__(self) -> str:
        where = f" on {self.machine}" if self.machine else ""
        return f"{self.worker}{where} is in quarantine for the rest of the run: {self.because}"


@dataclass(frozen=True)
class AvoidedMachine:
    """A machine on which workers failed, and of which `distrusted` were given up for what they sent. No worker starts
    there for `seconds_left`, and if `for_good` none does after that while others work elsewhere."""

    machine: str
    distrusted: int
    seconds_left: float
    for_good: bool
    because: str

    @property
    def until(self) -> str:
        """For how long no worker starts there."""
        if self.for_good:
            return "for the rest of the run, while others work elsewhere"
        return f"for {self.seconds_left:.0f} s more" if self.seconds_left > 0 else "until a while ago"

    def __str__(self) -> str:
        return f"{self.machine} is avoided {self.until}: {self.because}"


def read_quarantined(db: sqlite3.Connection) -> list[QuarantinedWorker]:
    """Return the workers in quarantine, in the order in which they came there."""
    rows = db.execute(
        "SELECT worker, coalesce(machine, ''), reason FROM quarantined LEFT JOIN workers USING (worker) ORDER BY at_s"
    )
    return [QuarantinedWorker(*row) for row in rows]


def read_avoided_machines(db: sqlite3.Connection, now: float) -> list[AvoidedMachine]:
    """Return the machines against which enough counts for nobody to wait for their next try, by name; `now` in seconds
    of the clock that the ledger was written by."""
    rows = db.execute("SELECT name, failures, distrusted, avoided_until_s, reason FROM machines ORDER BY name")
    against = [(strikes(failures, distrusted), name, distrusted, *rest) for name, failures, distrusted, *rest in rows]
    return [
        AvoidedMachine(name, distrusted, max(0.0, until_s - now), count >= MAX_FAILURES, because)
        for count, name, distrusted, until_s, because in against
        if count >= AVOIDED
    ]


def now_avoided(machines: Iterable[AvoidedMachine]) -> list[AvoidedMachine]:
    """Return those of the machines on which no worker starts now."""
    return [machine for machine in machines if machine.for_good or machine.seconds_left > 0]
