"""The registry of carriers, and the class that describes one: the worker's connection and the master's side.

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

    list: Callable[[], list[str]]  # names of all open mailboxes; raises OSError where they are unreachable for now
    open: Callable[[str], WorkerMailbox]  # by the worker's name


class Carrier(ABC):
    """A transport of messages, as gridml selects and uses it. Class variables describe it."""

    name: ClassVar[str]
    #: Workers are jobs on machines of unknown fitness, each in a folder of its own that holds an outbox, and may be
    #: started again as another attempt.
    remote: ClassVar[bool] = True
    anywhere: ClassVar[bool] = False  # works on every back end that transfers files
    has_address: ClassVar[bool] = False  # workers need the master's address
    job_file: ClassVar[str | None] = None  # file of the run directory to send with each job; `{job}` is its name
    modules: ClassVar[tuple[str, ...]] = ()  # must be importable at both ends
    install: ClassVar[str] = ""  # command that installs them
    hint: ClassVar[str] = ""  # advice for the user where the mailboxes are unreachable
    #: The master's side as `module:callable`, called with the run directory and, with `has_address`, the address;
    #: returns `MasterMailboxes`.
    mailboxes: ClassVar[str] = "gridml.carriers.directory:DirectoryMailboxes"

    @abstractmethod
    def connect(self, job: str, directory: Path | None) -> Connection:
        """Return the connection of job `job`; `directory` is the run directory where the worker shares a disk with the
        master. Raises UsageError or RunError where it cannot connect."""

    def check_address(self, address: str | None) -> None:  # noqa: B027
        """Raise UsageError for an invalid address."""

    def check_advertised(self, address: str | None, *, nearby: bool) -> None:  # noqa: B027
        """Raise UsageError for an address at which workers certainly cannot reach this machine. `nearby`: all workers
        run on this machine."""

    def missing_modules(self) -> tuple[str, ...]:
        """Return those of `modules` that are not installed here."""
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
