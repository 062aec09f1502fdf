"""`gridml cancel`: a run is stopped, and can go on later."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from gridml.commands.arguments import Json, RunArgument, say
from gridml.errors import LedgerError, RunError, UsageError

EXAMPLE = "Example: gridml cancel runs/mnist-20260401-120000"


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


def cancel(run: RunArgument, as_json: Json = False) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from master.store.rundir import command

    done = ask_to_stop(run)
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run), **asdict(done)}, indent=2))
    else:
        say(f"{done} Go on later with: {command('resume', run)}")


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
