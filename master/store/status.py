"""The words in which a ledger says what became of a run and of its workers."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """How a run stands. The ledger never says STOPPED: a master that was killed could not write it."""

    SUBMITTED = "submitted"  # its master has not begun
    RUNNING = "running"
    STOPPED = "stopped"  # the ledger says that it runs, but no master holds it
    FINISHED = "finished"  # every vertex is credited
    CANCELLED = "cancelled"  # by a person
    FAILED = "failed"  # stopped for a reason that is kept beside it


ORPHANED = "its master ended"  # what became of workers that an earlier master left behind
