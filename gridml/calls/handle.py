"""A run as a value: what a call returns, and what any run directory is opened as."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.calls.displays import Event
from gridml.errors import RunError

if TYPE_CHECKING:
    from master.store.status import RunStatus
    from master.views.report import Report

_LOOK_S = 0.2  # how often it is looked whether a run has ended


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
        from gridml.commands.cancel import ask_to_stop

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
