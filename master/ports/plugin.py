"""The parts of a back end that gridml offers to users: options, command, maker, and batch system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from master.state.jobs import Backend, BackendOptions
from master.store.rundir import RunDirectory
from master.store.settings import Settings


@dataclass(frozen=True)
class Command:
    """The command that begins a run on a back end: `gridml VERB PROGRAM`. `workers` is the default of `--workers`,
    None where it depends on other options; `help` its first lines, `example` the last one of its help."""

    verb: str
    help: str
    example: str
    workers: int | None
    workers_help: str
    seed_help: str = "Decides the order of vertices and first values."


@dataclass(frozen=True)
class MasterJob:
    """A run's master as a job in a queue: its number, its state in a word, and why it is held."""

    job: int
    state: str
    reason: str = ""

    def __str__(self) -> str:
        return f"job {self.job}, {self.state}{': ' if self.reason else ''}{self.reason}"


class Upkeep(NamedTuple):
    """A command that is of no run, but of the place where a back end's workers are; typer reads its signature."""

    call: Callable[..., None]
    example: str


class BatchSystem(ABC):
    """A queue in which masters are jobs, too, beside their workers: they go on when their user logs out."""

    @abstractmethod
    def check_reachable(self) -> None:
        """Raise RunError, saying what to do, where the queue cannot be reached."""

    @abstractmethod
    def submit_master(self, settings: Settings, directory: RunDirectory) -> int:
        """Hand a run over; returns the number of its master's job. Raises RunError when it is refused."""

    @abstractmethod
    def prepare_master(self, settings: Settings, directory: RunDirectory) -> Path:
        """Write what a run's master would be submitted by, and submit nothing; returns the file."""

    @abstractmethod
    def submission(self, prepared: Path) -> str:
        """Return what a person types to submit a master that was prepared, and how a workflow names it."""

    @abstractmethod
    def master_submitted(self, directory: RunDirectory) -> bool:
        """Return whether the run was handed over or prepared: where no master drives it, one may still come."""

    @abstractmethod
    def master_job(self, directory: RunDirectory) -> MasterJob | None:
        """Return how the job of a run's master stands; None where there is none, or the queue does not soon answer."""

    @abstractmethod
    def withdraw(self, directory: RunDirectory) -> str | None:
        """Take all jobs of a run that no master holds out of the queue; returns which, None where there was none.

        The run then counts as cancelled. Raises RunError when a master holds it, or the queue cannot be reached or
        refuses.
        """

    @abstractmethod
    def removal(self, job: int) -> str:
        """Return what a person types to end a master's job."""

    @abstractmethod
    def runs_this_process(self) -> bool:
        """Return whether this process is a job of the queue, which starts it again when it ends by a signal."""


class BackendPlugin(ABC):
    """A back end as gridml offers it. The registry makes one for each name.

    Adding a back end takes a subclass, and either a line in `registry.py` or an entry point of the group
    `gridml.backends`. Whoever has no `command` is reached by other ways, as simulations are.
    """

    name: ClassVar[str]
    options: ClassVar[type[BackendOptions]]
    command: ClassVar[Command | None] = None
    dry_run: ClassVar[str] = ""  # the help of --dry-run, where there is one
    batch: BatchSystem | None = None

    @abstractmethod
    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        """Return the back end of a run. Raises UsageError or RunError where it cannot be had."""

    def workers(self, options: BackendOptions) -> int:
        """Return how many workers a run has unless its user says. Raises UsageError."""
        assert self.command is not None and self.command.workers is not None
        return self.command.workers

    def nearby(self) -> bool:
        """Return whether all workers run on this machine, as far as can be told."""
        return True

    def describe(self, settings: Settings, directory: RunDirectory, *, foreground: bool) -> str:
        """Return what --dry-run prints: what would be asked for and sent; `foreground` says whether the master runs in
        this terminal. Raises what building the program's graph raises."""
        raise NotImplementedError

    def withdraw(self, settings: Settings, directory: RunDirectory) -> str | None:
        """End and remove what a run that no master holds has left elsewhere; return what, None where there was nothing.
        Raises RunError when a master holds it, or what is elsewhere cannot be reached."""
        return None if self.batch is None else self.batch.withdraw(directory)

    def upkeep(self) -> Mapping[str, Upkeep]:
        """Return further commands of the back end, by their names below its own: `gridml NAME COMMAND`."""
        return {}

    def check(self, settings: Settings) -> None:  # noqa: B027
        """Raise UsageError or RunError for what can be seen to be wrong before a directory is made."""

    def keep(self, settings: Settings, directory: RunDirectory) -> None:  # noqa: B027
        """Keep in a run's directory what its jobs take along, as it is now, whatever becomes of it later. Raises
        UsageError or StorageError."""
