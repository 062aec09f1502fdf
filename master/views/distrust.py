"""Read whose pushes were not taken as they came, who is trusted no more, and which machines get no worker: with the
reason, and until when."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from master.state.failures import AVOIDED, PAUSE_S, Altered, long_rest_s, strikes


@dataclass(frozen=True)
class AlteredPushes:
    """A worker's pushes that were not taken as they came."""

    worker: str
    machine: str
    #: pushes that were merged with shorter steps
    shortened: int
    #: pushes of whose steps a rule such as `clipped` took less
    clipped: int
    #: pushes of which a tensor, or optimiser moments, were left out
    left_out: int
    #: pushes that were not merged
    refused: int
    #: vertices of all of them
    vertices: int
    #: why the last of them was not taken as it came
    because: str


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
    there for `seconds_left`, of a long rest's last hour only while others work elsewhere; if `for_good` none does while
    they do."""

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


def read_altered(db: sqlite3.Connection) -> list[AlteredPushes]:
    """Return the workers that have such pushes, those with most vertices in them first."""
    counts = ", ".join(f"sum(pushes * (how = '{how}'))" for how in Altered)  # in the order of the fields above
    rows = db.execute(  # of columns that are not summed SQLite gives those of the row with the largest at_s
        f"SELECT worker, coalesce(machine, ''), {counts}, sum(vertices), reason, max(at_s) FROM altered "
        "LEFT JOIN workers USING (worker) GROUP BY worker ORDER BY sum(vertices) DESC, worker"
    )
    return [AlteredPushes(*row[:-1]) for row in rows]


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
    avoided = []
    for name, failures, distrusted, until_s, because in rows:
        longer_s = long_rest_s(failures, distrusted)
        for_good = math.isinf(longer_s)
        left_s = max(0.0, until_s + (0.0 if for_good else longer_s) - now)
        if strikes(failures, distrusted) >= AVOIDED or left_s > PAUSE_S:
            avoided.append(AvoidedMachine(name, distrusted, left_s, for_good, because))
    return avoided


def now_avoided(machines: Iterable[AvoidedMachine]) -> list[AvoidedMachine]:
    """Return those of the machines on which no worker starts now."""
    return [machine for machine in machines if machine.for_good or machine.seconds_left > 0]
