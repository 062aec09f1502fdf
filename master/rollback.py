"""Taking a run that no master drives back to a version that is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridml.errors import DamagedError, LedgerError, UsageError
from gridml.protocol.disks import network_disk
from master.store.best import Best
from master.store.ledger import Ledger
from master.store.rundir import MasterLock, RunDirectory, command
from master.store.status import RunStatus
from master.store.undo import Point, Undone, find_point
from master.store.versions import Versions


@dataclass(frozen=True)
class RolledBack:
    """Where a run now stands, and what was undone for that."""

    point: Point
    undone: Undone


def rollback(root: Path, to: str, clock: Callable[[], float] = time.time) -> RolledBack:
    """Take a run back to "e3", the end of its third epoch, or to version "v57"; `resume` then goes on from there.

    Raises RunError while a master drives it, LedgerError where the version's file is damaged, UsageError for a version
    that is not kept, or where the fields of local vertices are: they are kept since the end of the last epoch.
    """
    directory = RunDirectory(root)
    if not directory.ledger.is_file():
        raise LedgerError(f"{root} is not a run: it has no {directory.ledger.name}. Start one with gridml run PROGRAM.")
    lock = MasterLock(directory)
    try:
        ledger = Ledger(directory.ledger, shared_disk=network_disk(directory.root) is not None)
        try:
            return _roll_back(ledger, directory, to, clock())
        finally:
            ledger.close()
    finally:
        lock.release()


def _roll_back(ledger: Ledger, directory: RunDirectory, to: str, now: float) -> RolledBack:
    point = find_point(to, ledger.points())
    base = ledger.base()
    if base is not None and base.version > point.version:
        raise UsageError(
            f"--to is v{point.version}; the fields of local vertices that f changed are kept since version "
            f"{base.version} only. Give that one or a newer one, or go on with {command('resume', directory.root)}."
        )
    versions, newest = Versions(directory.versions), ledger.next_version
    gone = [version for version in ledger.kept_versions if version > point.version]
    try:
        sha256 = versions.copy(point.version, ledger.sha256_of(point.version), newest, point.credited)
    except DamagedError as error:
        with ledger.transaction():
            ledger.forget_version(point.version)
        others = command("rollback", directory.root)
        raise LedgerError(f"{error}. It is not offered any more; the others are those of: {others}") from error
    with ledger.transaction():
        undone = ledger.go_back(point.version, newest, sha256, now, "the run was taken back")
        ledger.set("status", RunStatus.CANCELLED)
        ledger.set("stopped_because", f"It was taken back to version {point.version}.")
        text = f"to version {point.version}; {undone.vertices:,} vertices are to be trained again"
        ledger.event(now, "rollback", text, {"version": point.version, "vertices": undone.vertices})
    ledger.backup()
    for version in gone:
        versions.remove(version)
    directory.final.unlink(missing_ok=True)
    if ledger.get(Best.FACT) is None:  # what was the best is undone; the next master finds what is now
        directory.best.unlink(missing_ok=True)
    return RolledBack(point, undone)
