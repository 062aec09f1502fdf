"""What a simulation has shown: the report of its run, and what only the world around it knows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.simulation.world import World, fingerprint
from master.store.reader import opened
from master.views.report import Report, report


@dataclass(frozen=True)
class Outcome:
    """`decisions` are those that the ledger records: pushes credited, leases granted and ended, workers asked for and
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

    def said(self) -> str:
        """For people, in a few lines."""
        rate = self.decisions / self.master_s if self.master_s else 0.0
        return (
            f"Simulated: {self.decisions:,} decisions in {self.master_s:.1f} s of the master ({rate:,.0f}/s) and "
            f"{self.world_s:.1f} s of the world around it; {self.messages:,} messages, {self.lost:,} of them lost or "
            f"damaged.\nLedger {self.sha256[:16]}: the same command gives the same."
        )


def outcome(world: World, root: Path) -> Outcome:
    """The outcome of a simulation that has ended, with its run in `root`."""
    return Outcome(
        report=report(root),
        decisions=decisions(root),
        master_s=world.master_s,
        world_s=world.world_s,
        messages=world.messages,
        lost=world.lost,
        sha256=fingerprint(root),
    )


def decisions(root: Path) -> int:
    """The decisions that a ledger records. Raises LedgerError when there is none, or it is damaged."""
    with opened(root) as connection:
        return sum(
            int(connection.execute(query).fetchone()[0])
            for query in (
                "SELECT count(*) FROM credits",
                "SELECT count(*) + count(closed_s) FROM leases",
                "SELECT count(*) + count(ended_s) FROM workers",
            )
        )
