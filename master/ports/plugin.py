"""The plug-in interface of a back end: options, command, factory, and batch system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from gridml.model.program import Program
from master.state.jobs import Backend, BackendOptions
from master.store.rundir import RunDirectory
from master.store.settings import Settings


@dataclass(frozen=True)
class Command:
    """The command that starts a run on a back end: `gridml VERB PROGRAM`."""

    verb: str
    help: str  # the first lines of its help
    example: str  # the last line of its help
    workers: int | None  # default of --workers; None: the default depends on other options
    workers_help: str
    seed_help: str = "Random seed of the vertices' order and initial values."


@dataclass(frozen=True)
class MasterJob:
    """A run's master as a job in a queue."""

    job: int  # its number in the queue
    state: str
    reason: str = ""  # the reason why the queue holds the job; empty: it is not held

    def __str__(self) -> str:
        return f"job {self.job}, {self.state}{': ' if self.reason else ''}{self.reason}"


class Upkeep(NamedTuple):
    """A maintenance command of a back end, independent of any run."""

    call: Callable[..., None]  # typer reads its signature
    example: str


class BatchSystem(ABC):
    """A queue that also runs masters as jobs, so that a master continues after its user has logged out."""

    @abstractmethod
    def check_reachable(self) -> None:
        """Raise RunError, with advice, if the queue is unreachable."""

    @abstractmethod
    def submit_master(self, settings: Settings, directory: RunDirectory) -> int:
        """Submit a run's master; return the number of its job. Raises RunError if the queue refuses the job."""

    @abstractmethod
    def prepare_master(self, settings: Settings, directory: RunDirectory) -> Path:
        """Write the submit file of a run's master without submitting it; return the file."""

    @abstractmethod
    def submission(self, prepared: Path) -> str:
        """Return the command that submits a prepared master, and the line for a workflow."""

    @abstractmethod
    def master_submitted(self, directory: RunDirectory) -> bool:
        """Return whether the run's master was submitted or prepared; if so, a master may still start."""

    @abstractmethod
    def master_job(self, directory: RunDirectory) -> MasterJob | None:
        """Return the job of a run's master; None if there is no such job, or if the queue does not answer in time."""

    @abstractmethod
    def master_end(self, directory: RunDirectory) -> str | None:
        """Return how the job of the run's last master ended; None if it has not ended, or if this cannot be known."""

    @abstractmethod
    def withdraw(self, directory: RunDirectory) -> str | None:
        """Remove all jobs of a run that has no master from the queue. Return their description; None: no jobs.

        The run then counts as cancelled. Raises RunError if a master holds the run, or if the queue is unreachable or
        refuses to remove the jobs.
        """

    @abstractmethod
    def removal(self, job: int) -> str:
        """Return the command that removes a master's job."""

    @abstractmethod
    def runs_this_process(self) -> bool:
        """Return whether this process is a job of the queue, which restarts it after a signal."""


class BackendPlugin(ABC):
    """A back end as gridml offers it to users. The registry creates one instance for each name.

    A new back end needs a subclass, and either a line in `registry.py` or an entry point of the group
    `gridml.backends`.
    """

    name: ClassVar[str]
    options: ClassVar[type[BackendOptions]]
    command: ClassVar[Command | None] = None  # None: runs are started in another way, as by `gridml simulate`
    dry_run: ClassVar[str] = ""  # the help of --dry-run; empty: --dry-run is not supported
    batch: BatchSystem | None = None

    @abstractmethod
    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        """Return the back end of a run. Raises UsageError or RunError if it is unavailable."""

    def workers(self, options: BackendOptions) -> int:
        """Return the default number of workers of a run. Raises UsageError."""
        assert self.command is not None and self.command.workers is not None
        return self.command.workers

    def nearby(self) -> bool:
        """Return whether all workers are expected to run on this machine."""
        return True

    def describe(self, settings: Settings, directory: RunDirectory, *, foreground: bool) -> str:
        """Return the text of --dry-run, which describes what would be requested and sent. `foreground` is True if the
        master would run in this terminal. Raises the errors of building the program's graph."""
        raise NotImplementedError

    def withdraw(self, settings: Settings, directory: RunDirectory) -> str | None:
        """Remove the jobs and resources that a run without a master has left. Return their description; None: there
        were none. Raises RunError if a master holds the run, or if the back end is unreachable."""
        return None if self.batch is None else self.batch.withdraw(directory)

    def upkeep(self) -> Mapping[str, Upkeep]:
        """Return maintenance commands by name: `gridml BACKEND NAME`."""
        return {}

    def check(self, settings: Settings) -> None:  # noqa: B027
        """Raise UsageError or RunError for errors that are detectable before the run directory is created."""

    def keep(self, settings: Settings, directory: RunDirectory) -> None:  # noqa: B027
        """Copy the files that jobs need into the run directory, so that later changes do not affect the run. Raises
        UsageError or StorageError."""

    def equip(self, program: Program, settings: Settings, directory: RunDirectory) -> None:  # noqa: B027
        """Write what workers of this program need besides its files into the run directory. Called before each master
        of a run makes its back end. Raises UsageError or StorageError."""
