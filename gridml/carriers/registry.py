"""Carriers by name, and what each brings: the worker's way to the mailboxes, and where the master's side is.

Another package adds one with an entry point of the group `gridml.carriers` that names a subclass of `Carrier`.
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
    """A worker's way to the mailboxes of its run. `list` gives the names of those that are open, of any worker;
    it raises OSError where they are out of reach for the moment. `open` makes one worker's mailbox."""

    list: Callable[[], list[str]]
    open: Callable[[str], WorkerMailbox]


class Carrier(ABC):
    """What gridml must know of a way for messages to travel.

    `remote`: its workers are jobs on machines that nobody has looked at, in folders of their own where an outbox is
    kept, and may be started again as another attempt. `anywhere`: it works on every back end that carries files.
    `has_address`: workers are told where to reach the master. `job_file` is a file of the run directory that goes with
    each job, under the job's name; `{job}` stands for it. `modules` must be importable at both ends, and `install` is
    how a person gets them. `hint` is what a person can do where the mailboxes are out of reach. `mailboxes` names the
    master's side as `module:callable`, which is given the run directory, and the address where there is one, and
    makes `MasterMailboxes`.
    """

    name: ClassVar[str]
    remote: ClassVar[bool] = True
    anywhere: ClassVar[bool] = False
    has_address: ClassVar[bool] = False
    job_file: ClassVar[str | None] = None
    modules: ClassVar[tuple[str, ...]] = ()
    install: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    mailboxes: ClassVar[str] = "gridml.carriers.directory:DirectoryMailboxes"

    @abstractmethod
    def connect(self, job: str, directory: Path | None) -> Connection:
        """Return the way of job `job`; `directory` is the run directory where the worker shares a disk with the
        master. Raises UsageError or RunError where there is none."""

    def check_address(self, address: str | None) -> None:  # noqa: B027
        """Raise UsageError for an address that is none."""

    def check_advertised(self, address: str | None, *, nearby: bool) -> None:  # noqa: B027
        """Raise UsageError for a place where workers cannot reach a master of this machine, as far as that can be seen
        from here; they are `nearby` where all of them run on it."""

    def missing_modules(self) -> tuple[str, ...]:
        """Return what of `modules` is not installed here."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)


class Directory(Carrier):
    """A disk that master and workers share."""

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
