"""The result of a simulation: the report of its run, the counts of the simulated world, and a check for exact credits.

The check reads only the ledger's file, and shares no code with the master that wrote it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gridml.errors import LedgerError
from master.simulation.world import World
from master.store.reader import opened
from master.views.report import Report, report


@dataclass(frozen=True)
class SimulationResult:
    """The result of a simulation that has ended. Field names are the keys of its JSON."""

    report: Report
    decisions: int  # counted in the ledger: pushes credited, leases granted and ended, workers requested and ended
    master_s: float  # CPU seconds of the master's code
    world_s: float  # CPU seconds of everything around the master
    messages: int  # messages and replies that were sent
    lost: int  # messages and replies of which no copy arrived intact
    sha256: str  # of the ledger's canonical dump

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def summary(self) -> str:
        """Return a summary of a few lines for people."""
        rate = self.decisions / self.master_s if self.master_s else 0.0
        return (
            f"Simulated: {self.decisions:,} decisions in {self.master_s:.1f} s of the master ({rate:,.0f}/s) and "
            f"{self.world_s:.1f} s of the world around it; {self.messages:,} messages, {self.lost:,} of them lost or "
            f"damaged.\nLedger {self.sha256[:16]}: the same command gives the same."
        )


def result_of(world: World, root: Path) -> SimulationResult:
    """Return the result of a simulation whose run is in `root`."""
    with opened(root) as ledger:
        decisions, sha256 = count_decisions(ledger), _sha256(ledger)
    return SimulationResult(
        report=report(root),
        decisions=decisions,
        master_s=world.master_s,
        world_s=world.world_s,
        messages=world.workers.traffic.sent,
        lost=world.workers.traffic.lost,
        sha256=sha256,
    )


def count_decisions(ledger: sqlite3.Connection) -> int:
    """Return the number of decisions in a ledger, as defined for `SimulationResult.decisions`."""
    return sum(
        int(ledger.execute(query).fetchone()[0])
        for query in (
            "SELECT count(*) FROM credits",
            "SELECT count(*) + count(closed_s) FROM leases",
            "SELECT count(*) + count(ended_s) FROM workers",
        )
    )


def dump(ledger: sqlite3.Connection) -> Iterator[str]:
    """Yield the canonical dump of a ledger as lines of text: all rows of each table, ordered by rowid. The digest of
    the settings is left out, because it depends on the path of the program."""
    tables = [name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    for table in tables:
        yield f"-- {table}"
        for row in ledger.execute(f"SELECT * FROM {table} ORDER BY rowid"):
            if (table, row[0]) != ("run", "settings"):
                yield repr(row)


def fingerprint(root: Path) -> str:
    """Return the SHA-256 of the canonical dump of a run's ledger. Runs with the same seed have the same SHA-256.

    Raises LedgerError for a ledger that is missing or damaged.
    """
    with opened(root) as ledger:
        return _sha256(ledger)


def _sha256(ledger: sqlite3.Connection) -> str:
    digest = hashlib.sha256()
    for line in dump(ledger):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


Part = tuple[int, int, str]  # (start, stop, state of this range as error messages describe it)


@dataclass(frozen=True)
class VerifiedCredits:
    """Counts of a ledger whose credits are exact."""

    credited: int  # vertices credited, over all epochs
    epochs: int  # epochs with any credit
    finished: int  # epochs that are closed
    credits: int  # pushes credited


def verify_credits(root: Path) -> VerifiedCredits:
    """Verify the credits of the run in `root`, whether it has ended or not.

    In every epoch, the credited, free and leased ranges must be a partition. A finished epoch must be credited in full.
    Every sum in the ledger must equal the sum of its rows.

    Raises LedgerError, which names the wrong epoch and range, or the reason why the ledger cannot be read.
    """
    with opened(root) as db:
        return _verified(db)


class VerifiedTicks(NamedTuple):
    """Counts of a ledger whose mini-batches are exact."""

    mini_batches: int
    ahead: int  # the largest number of ticks that a mini-batch was ahead of the slowest part when it began


def verify_ticks(root: Path, slack: float) -> VerifiedTicks:
    """Verify the mini-batches of the finished run in `root`, whose program has this slack.

    In every epoch, each mini-batch of each part must be credited once, and no mini-batch of tick t may have begun from
    a version that lacks any of tick t-slack-1. Raises LedgerError.
    """
    with opened(root) as db:
        rows = db.execute("SELECT epoch, tick, part, base, merged, vertices FROM ticks").fetchall()
        credited = dict(db.execute("SELECT epoch, credited FROM epochs"))
    parts, count = (1 + max(row[at] for row in rows) for at in (2, 1))
    versions: dict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in range(count)])
    for epoch, tick, _, _, merged, vertices in rows:
        if merged is None:
            raise LedgerError(f"epoch {epoch + 1}: a mini-batch of tick {tick + 1} is credited, and was never merged")
        versions[epoch][tick].append(merged)
        credited[epoch] -= vertices
    for epoch, ticks in versions.items():
        if any(len(merged) != parts for merged in ticks) or credited[epoch]:
            raise LedgerError(f"epoch {epoch + 1}: a mini-batch is not there; {credited[epoch]} vertices are in none")
    complete = {epoch: list(accumulate(map(max, ticks), max)) for epoch, ticks in versions.items()}
    ahead = 0
    for epoch, tick, part, base, _, _ in rows:
        behind = tick - bisect_right(complete[epoch], base)
        if behind > slack:
            where = f"epoch {epoch + 1}: mini-batch {tick + 1} of part {part + 1}"
            raise LedgerError(f"{where} began from version {base}, which has {tick - behind} whole ticks")
        ahead = max(ahead, behind)
    return VerifiedTicks(len(rows), ahead)


def _verified(db: sqlite3.Connection) -> VerifiedCredits:
    parts: dict[int, list[Part]] = defaultdict(list)
    sums: dict[int, int] = defaultdict(int)
    reached: dict[int, int] = {}  # by lease: the position up to which it is credited
    by_version: dict[int, int] = defaultdict(int)
    starts = dict(db.execute("SELECT id, start FROM leases"))
    count = 0
    for epoch, start, stop, lease, version in db.execute(
        "SELECT epoch, start, stop, lease, version FROM credits ORDER BY rowid"
    ):
        where = f"epoch {epoch + 1}: [{start}, {stop})"
        if start >= stop:
            raise LedgerError(f"{where} is credited, but the range is empty")
        # A lease is pushed from its start without gaps, so each credit begins where the lease's previous credit ends.
        if start != reached.get(lease, starts.get(lease)):
            raise LedgerError(f"{where} is credited to lease {lease}, which was credited up to {reached.get(lease)}")
        reached[lease] = stop
        parts[epoch].append((start, stop, f"credited in version {version}"))
        sums[epoch] += stop - start
        by_version[version] += stop - start
        count += 1
    for epoch, start, stop in db.execute("SELECT epoch, start, stop FROM spans"):
        parts[epoch].append((start, stop, "free"))
    for lease, epoch, start, stop, upto, worker in db.execute(
        "SELECT id, epoch, start, stop, upto, worker FROM leases WHERE closed_s IS NULL"
    ):
        if upto != reached.get(lease, start):
            raise LedgerError(f"epoch {epoch + 1}: lease {lease} of [{start}, {stop}) claims credits up to {upto}")
        parts[epoch].append((upto, stop, f"leased to {worker}"))
    finished = _epochs(db, parts, sums)
    _versions(db, by_version)
    return VerifiedCredits(sum(sums.values()), len(sums), finished, count)


def _epochs(db: sqlite3.Connection, parts: dict[int, list[Part]], sums: dict[int, int]) -> int:
    """Verify every epoch; return the number of finished ones."""
    finished, opened_epochs = 0, set()
    for epoch, vertices, credited, closed_s in db.execute("SELECT epoch, vertices, credited, closed_s FROM epochs"):
        opened_epochs.add(epoch)
        _partition(epoch, vertices, parts[epoch])
        if credited != sums[epoch]:
            raise LedgerError(f"epoch {epoch + 1} claims {credited} credited vertices; its rows sum to {sums[epoch]}")
        if closed_s is not None and credited != vertices:
            raise LedgerError(f"epoch {epoch + 1}: closed with {credited} of [0, {vertices}) credited")
        finished += closed_s is not None
    for epoch in sorted(parts.keys() - opened_epochs):
        raise LedgerError(f"epoch {epoch + 1}: {parts[epoch][0][:2]} is {parts[epoch][0][2]}, but it was never opened")
    return finished


def _partition(epoch: int, vertices: int, parts: list[Part]) -> None:
    before: Part = (0, 0, "the beginning")
    end: Part = (vertices, vertices, "the end")
    # The parts cover [0, vertices) exactly once if, in sorted order, each part begins where the previous one ends.
    for one, two in pairwise([before, *sorted(part for part in parts if part[0] < part[1]), end]):
        if one[1] > two[0]:
            twice = f"[{two[0]}, {min(one[1], max(two[1], two[0] + 1))})"
            raise LedgerError(f"epoch {epoch + 1}: {twice} is {one[2]} and {two[2]}")
        if one[1] < two[0]:
            raise LedgerError(f"epoch {epoch + 1}: [{one[1]}, {two[0]}) is neither credited, nor free, nor leased")


def _versions(db: sqlite3.Connection, by_version: dict[int, int]) -> None:
    """Verify that every version records the number of vertices credited in this version and all earlier versions."""
    total, versions = 0, set()
    for version, credited in db.execute("SELECT version, credited FROM versions ORDER BY version"):
        versions.add(version)
        total += by_version.get(version, 0)
        if credited != total:
            raise LedgerError(f"version {version} claims {credited} credited vertices; its rows sum to {total}")
    for version in sorted(by_version.keys() - versions):
        raise LedgerError(f"{by_version[version]} vertices are credited in version {version}, which does not exist")
