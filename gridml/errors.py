"""Exceptions of gridml. Each message has the actual value, the expected one and advice.

The command line prints these errors without a traceback and exits with their `exit_status`. Any other exception is a
bug in gridml and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

# Exit statuses of workers, from <sysexits.h>. The master reads them to decide where the next worker may start.
UNFIT = 69  # EX_UNAVAILABLE: the machine lacks something
DEVICE = 71  # EX_OSERR: the device failed during training
UNEQUIPPED = 78  # EX_CONFIG: the Python or modules are missing, which a job can provide


class GridmlError(Exception):
    """Base class of errors that are shown to the user."""

    exit_status: ClassVar[int] = 1


class UsageError(GridmlError):
    """A command or call got an invalid argument (a missing file, a size below one)."""

    exit_status = 2


class ProgramError(GridmlError):
    """The user's file is not a valid program: no Program, arrays of unequal length, ..."""

    exit_status = 3


class UnguardedError(ProgramError):
    """A file starts a run while it is loaded as a program."""


class _TracedError(GridmlError):
    """An error of code outside gridml, with its traceback as text."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class UserCodeError(_TracedError):
    """The user's f, g or evaluate raised, or returned an invalid value.

    `traceback_text` is the user's own traceback, without frames of gridml.
    """

    exit_status = 4


class DataError(_TracedError):
    """A data set is not available, or its content does not match its checksum.

    `traceback_text` is that of the data set's own code, if that failed.
    """

    exit_status = 5


class StorageError(GridmlError):
    """The disk is full or not writable. The run is intact up to its last commit."""

    exit_status = 6


class LedgerError(GridmlError):
    """The ledger of a run cannot be read, or belongs to another run."""

    exit_status = 7


class DamagedError(LedgerError):
    """A file of a run is missing, or does not match the ledger. The message has no advice, since that depends on the
    run: see `master.store.diagnosis`."""

    def __init__(self, problem: str, file: Path) -> None:
        super().__init__(problem)
        self.file = file


class RunError(GridmlError):
    """A run cannot continue (another master runs it, it was cancelled, no worker can start)."""

    exit_status = 8


class CancelledError(RunError):
    """A user has cancelled the run."""


class SupersededError(RunError):
    """Another master has taken over the run. This one has written nothing since, and must not."""


class NotFiniteError(UserCodeError):
    """A loss or a replica contains NaN or infinity."""


class Interruption(BaseException):
    """The process was asked to exit. Code that handles errors of user code re-raises it."""
