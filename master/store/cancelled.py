"""A run that was cancelled while no master drove it."""

from __future__ import annotations

from gridml.protocol.disks import network_disk
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.status import RunStatus


def mark_cancelled(directory: RunDirectory) -> None:
    """Leave word that a run which was not over is cancelled. The caller holds the master's lock."""
    ledger = Ledger(directory.ledger, shared_disk=network_disk(directory.root) is not None)
    try:
        with ledger.transaction():
            if ledger.get("status") in (RunStatus.SUBMITTED, RunStatus.RUNNING):
                ledger.set("status", RunStatus.CANCELLED)
                ledger.set("stopped_because", f"{directory.root} was cancelled while no master drove it.")
    finally:
        ledger.close()
