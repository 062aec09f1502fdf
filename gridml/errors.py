"""Every error gridml raises on purpose: it says what was got, what was expected and what to do next.

The command line prints such an error without a traceback and leaves with its `exit_status`; any other exception is a
defect of gridml and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

UNFIT = 69  # exit status of a worker whose machine lacks something: EX_UNAVAILABLE, <sysexits.h>
DEVICE = 71  # of one whose device fails while it trains: EX_OSERR
UNEQUIPPED = 78  # of one that has not the Python or the modules it takes, which a job can bring along: EX_CONFIG


class GridmlError(Exception):
    """Base of all errors meant for a person."""

    exit_status: ClassVar[int] = 1


class UsageError(GridmlError):
    """A command or call was given something it cannot use (no such file, a size below one)."""

    exit_status = 2


class ProgramError(GridmlError):
    """The user's file does not describe a program gridml can run: no Program, arrays of unequal length, ..."""

    exit_status = 3


class UnguardedError(ProgramError):
    """A file begins a run while it is itself loaded as a program."""


class _TracedError(GridmlError):
    """An error of code that is not gridml's, with that code's own traceback."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class UserCodeError(_TracedError):
    """The user's f, g or evaluate raised, or returned what cannot be merged.

    `traceback_text` is the user's own traceback, already cut to the frames that matter.
    """

    exit_status = 4


class DataError(_TracedError):
    """A data set cannot be had, or its content is not what its checksum says.

    `traceback_text` is that of the data set's own code, where that failed.
    """

    exit_status = 5


class StorageError(GridmlError):
    """The disk is full or cannot be written; the run is intact up to its last commit."""

    exit_status = 6


class LedgerError(GridmlError):
    """The ledger of a run cannot be read, or belongs to something else."""

    exit_status = 7


class DamagedError(LedgerError):
    """`file` of a run is gone, or is not what the run's ledger says. Says no more than that: what to do depends on the
    run, see `master.store.diagnosis`."""

    def __init__(self, problem: str, file: Path) -> None:
        super().__init__(problem)
        self.file = file


class RunError(GridmlError):
    """A run cannot go on as asked (another master holds it, it was cancelled, no worker can start)."""

    exit_status = 8


class CancelledError(RunError):
    """A person has stopped the run."""


class SupersededError(RunError):
    """Another master has taken the run over; this one has written nothing since, and must not."""


class NotFiniteError(UserCodeError):
    """A loss or a replica holds NaN or infinity."""


class Interruption(BaseException):
    """The process was asked to end: what ends with it, such as the user's code, is not to blame."""
