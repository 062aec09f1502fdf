"""What a simulation has shown: the report of its run, and what only the world around it knows."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.simulation.world import World
from master.store.reader import opened
from master.views.report import Report, report


@dataclass(frozen=True)
class SimulationResult:
    """`decisions` are those that the ledger records: pushes credited, leases granted and ended, workers requested and
    ended. `master_s` and `world_s` are CPU seconds of the master's code and of the world around it; `messages` were
    sent, of which `lost` never arrived whole; `sha256` is that of the ledger's canonical dump."""

    report: Report
    decisions: int
    master_s: float
    world_s: float
    messages: int
    lost: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def summary(self) -> str:
        """Return it for people, in a few lines."""
        rate = self.decisions / self.master_s if self.master_s else 0.0
        return (
            f"Simulated: {self.decisions:,} decisions in {self.master_s:.1f} s of the master ({rate:,.0f}/s) and "
            f"{self.world_s:.1f} s of the world around it; {self.messages:,} messages, {self.lost:,} of them lost or "
            f"damaged.\nLedger {self.sha256[:16]}: the same command gives the same."
        )


def result_of(world: World, root: Path) -> SimulationResult:
    """Return the result of a simulation that has ended, with its run in `root`."""
    with opened(root) as ledger:
        decisions, sha256 = count_decisions(ledger), _sha256(ledger)
    return SimulationResult(
        report=report(root),
        decisions=decisions,
        master_s=world.master_s,
        world_s=world.world_s,
        messages=world.messages,
        lost=world.lost,
        sha256=sha256,
    )


def count_decisions(ledger: sqlite3.Connection) -> int:
    """Count the decisions that a ledger records."""
    return sum(
        int(ledger.execute(query).fetchone()[0])
        for query in (
            "SELECT count(*) FROM credits",
            "SELECT count(*) + count(closed_s) FROM leases",
            "SELECT count(*) + count(ended_s) FROM workers",
        )
    )


def dump(ledger: sqlite3.Connection) -> Iterator[str]:
    """Yield a ledger as lines of text, canonical: every row of every table in the order of its key, but for the digest
    of the settings, which depends on where the program lies."""
    tables = [name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    for table in tables:
        yield f"-- {table}"
        for row in ledger.execute(f"SELECT * FROM {table} ORDER BY rowid"):
            if (table, row[0]) != ("run", "settings"):
                yield repr(row)


def fingerprint(root: Path) -> str:
    """Return the SHA-256 of the canonical dump of a run's ledger: the same for the same seed.

    Raises LedgerError when there is none, or it is damaged.
    """
    with opened(root) as ledger:
        return _sha256(ledger)


def _sha256(ledger: sqlite3.Connection) -> str:
    digest = hashlib.sha256()
    for line in dump(ledger):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
