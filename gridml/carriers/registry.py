"""The registry of carriers, and `Carrier`: describes a carrier, its worker's connection and its master's side.

Another package adds a carrier by an entry point of the group `gridml.carriers` that names a subclass of `Carrier`.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gridml.carriers.base import WorkerMailbox
from gridml.carriers.directory import DirectoryMailbox
from gridml.errors import UsageError
from gridml.registry import Registry


@dataclass(frozen=True)
class Connection:
    """A worker's connection to the mailboxes of its run."""

    list: Callable[[], list[str]]  # returns the names of all open mailboxes; OSError if they are unreachable for now
    open: Callable[[str], WorkerMailbox]  # returns the mailbox of a worker, by the worker's name


class Carrier(ABC):
    """A transport of messages and chunks between master and workers. Class variables describe it."""

    name: ClassVar[str]
    #: True if workers are jobs on machines of unknown fitness. Each job has a folder of its own with an outbox, and may
    #: be started again as another attempt.
    remote: ClassVar[bool] = True
    anywhere: ClassVar[bool] = False  # True if the carrier works on every back end that transfers files
    has_address: ClassVar[bool] = False  # True if workers need the master's address
    job_file: ClassVar[str | None] = None  # file of the run directory to send with each job; {job} is the job's name
    modules: ClassVar[tuple[str, ...]] = ()  # Python modules that both ends must be able to import
    install: ClassVar[str] = ""  # command that installs these modules
    hint: ClassVar[str] = ""  # advice for the user if the mailboxes are unreachable
    #: The master's side as `module:callable`. The callable returns `MasterMailboxes`. Its arguments are the run
    #: directory and, if `has_address`, the address.
    mailboxes: ClassVar[str] = "gridml.carriers.directory:DirectoryMailboxes"

    @abstractmethod
    def connect(self, job: str, directory: Path | None) -> Connection:
        """Return the connection of job `job`. `directory` is the run directory, if the worker shares a disk with the
        master. Raises UsageError or RunError if no connection is possible."""

    def check_address(self, address: str | None) -> None:  # noqa: B027
        """Raise UsageError for an invalid address."""

    def check_advertised(self, address: str | None, *, nearby: bool) -> None:  # noqa: B027
        """Raise UsageError for an address at which workers certainly cannot reach this machine. `nearby` is True if all
        workers run on this machine."""

    def missing_modules(self) -> tuple[str, ...]:
        """Return those of `modules` that are not installed on this machine."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)


class Directory(Carrier):
    """The directory carrier, over a disk that master and workers share."""

    name = "directory"
    remote = False

    def connect(self, job: str, directory: Path | None) -> Connection:
        if directory is None:
            raise UsageError("the directory carrier needs --directory, the run directory shared with the master.")
        return Connection(lambda: [job], lambda worker: DirectoryMailbox(directory, worker))


CARRIERS: Registry[Carrier] = Registry(
    "carrier",
    "gridml.carriers",
    {
        "directory": "gridml.carriers.registry:Directory",
        "chirp": "gridml.carriers.chirp:Chirp",
        "sftp": "gridml.carriers.sftp:Sftp",
    },
)
