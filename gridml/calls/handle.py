"""A run as a value: what a call returns, and what any run directory is opened as."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.errors import LedgerError, RunError, UsageError

if TYPE_CHECKING:
    from master.store.event_facts import EventFacts
    from master.store.status import RunStatus
    from master.views.report import Report

_LOOK_S = 0.2  # how often it is looked whether a run has ended


@dataclass(frozen=True)
class Event:
    """What happened in a run, `at_s` in seconds since 1970. Its `topic` is a word such as "evicted", its `facts` are
    the numbers and names of its `text` (docs/events.md)."""

    at_s: float
    topic: str
    text: str
    facts: EventFacts


@dataclass(frozen=True)
class Cancelled:
    """Which of two was done: a `master` was asked to stop, or where none drove the run, what the last one had left was
    `removed`; the other is None."""

    master: str | None
    removed: str | None

    def __str__(self) -> str:
        if self.master is not None:
            return f"Asked the master ({self.master}) to stop."
        return f"No master drove it. Removed: {self.removed}."


class Run:
    """A run in its directory, whoever drives it and whether it goes on. Raises LedgerError where there is none.

    `run_dir` is absolute: it stays this run, whatever directory its process works in later.

    `gridml.Run("runs/mnist-20260401-120000")` opens one that a command or another process began.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        from master.store.reader import connect

        self.run_dir = Path(run_dir).absolute()
        connect(self.run_dir).close()

    def __repr__(self) -> str:
        return f"gridml.Run({str(self.run_dir)!r})"

    def __fspath__(self) -> str:
        return str(self.run_dir)

    @property
    def status(self) -> RunStatus:
        """How the run stands: a text, such as "running" or "finished"."""
        from master.store.reader import opened
        from master.store.run_facts import read_status

        with opened(self.run_dir) as ledger:
            return read_status(ledger, self.run_dir)

    def report(self) -> Report:
        """Return what the run did, how fast, and what was lost, as `gridml report` does; also while it goes on."""
        from master.views.report import report

        return report(self.run_dir)

    def events(self, topic: str | None = None) -> list[Event]:
        """Return what happened, oldest first; of one topic, or of all."""
        from master.store.event_facts import facts_from
        from master.store.reader import opened

        query = "SELECT at_s, topic, text, facts FROM events WHERE ? IS NULL OR topic = ? ORDER BY rowid"
        with opened(self.run_dir) as ledger:
            rows = ledger.execute(query, (topic, topic)).fetchall()
            return [Event(at_s, its, text, facts_from(facts)) for at_s, its, text, facts in rows]

    def metrics(self) -> list[dict[str, Any]]:
        """Return what evaluate said of each epoch, with its number from 1 as "epoch"."""
        return [{"epoch": each.epoch, **each.metrics} for each in self.report().epochs if each.metrics]

    def load(self, which: str | int = "final") -> dict[str, Any]:
        """Return a replica of the run, as `gridml.load` does."""
        from gridml.calls.loading import load

        return load(self, which)

    def wait(self, timeout_s: float | None = None) -> Run:
        """Return when the run has finished: at once where this process drove it.

        Raises RunError where it was cancelled or has failed, or no master drives it nor will; TimeoutError.
        """
        from master.backends.registry import batch_of
        from master.store.rundir import RunDirectory, command
        from master.store.status import RunStatus

        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        batch = batch_of(self.run_dir)
        while (status := self.status) in (RunStatus.RUNNING, RunStatus.SUBMITTED, RunStatus.STOPPED):
            comes = batch is not None and batch.master_submitted(RunDirectory(self.run_dir))
            if status is not RunStatus.RUNNING and not comes:
                break
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"{self.run_dir} is {status} after {timeout_s:g} s")
            time.sleep(_LOOK_S)
        if status is not RunStatus.FINISHED:
            because = f": {self._stopped_because()}" if status in (RunStatus.FAILED, RunStatus.CANCELLED) else ""
            raise RunError(f"{self.run_dir} is {status}{because}. Go on with: {command('resume', self.run_dir)}")
        return self

    def _stopped_because(self) -> str:
        from master.store.reader import opened
        from master.store.run_facts import read_facts

        with opened(self.run_dir) as ledger:
            return str(read_facts(ledger).get("stopped_because", "it is not known why"))

    def cancel(self) -> None:
        """Ask the run's master to stop, as `gridml cancel` does: the run keeps its credits, and can be resumed. Raises
        RunError where no master drives it."""
        ask_to_stop(self.run_dir)

    def scale(self, workers: int) -> None:
        """Ask for so many workers from now on, as `gridml scale` does. Raises RunError where the run has finished."""
        from master.scaling import request

        request(self.run_dir, workers)

    def settings(self) -> Mapping[str, Any]:
        """Return what the run was asked for, as its settings.json has it."""
        from master.store.rundir import RunDirectory

        settings: dict[str, Any] = json.loads(RunDirectory(self.run_dir).settings.read_text())
        return settings


def ask_to_stop(run: Path) -> Cancelled:
    """Ask the master of a run to stop, or where it is gone, end what it has left; return which was done. Raises
    RunError where there is nothing to cancel, UsageError where the run cannot be written, LedgerError where there is
    none."""
    from master.backends.registry import batch_of, withdraw
    from master.store.reader import holder
    from master.store.rundir import RunDirectory, command

    directory = RunDirectory(run)
    if not os.path.isfile(directory.ledger):
        raise LedgerError(f"{run} is not a run: it has no ledger. Name the directory that gridml run made.")
    try:
        if (master := holder(run)) is not None:
            (run / "cancel").touch()
            return Cancelled(master, None)
        withdrawn = withdraw(run)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    if withdrawn is None:
        batch = batch_of(run)
        submitted = batch is not None and batch.master_submitted(directory)
        gone = ", and its job is no longer in the queue" if submitted else ""
        look = f"{command('status', run)} says how it stands."
        raise RunError(f"no master drives {run}{gone}: there is nothing to cancel. {look}")
    return Cancelled(None, withdrawn)
