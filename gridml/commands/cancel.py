"""`gridml cancel`: a run is stopped, and can go on later."""

from __future__ import annotations

import os
from pathlib import Path

from gridml.commands.arguments import RunArgument, say
from gridml.errors import LedgerError, RunError, UsageError

EXAMPLE = "Example: gridml cancel runs/mnist-20260401-120000"


def cancel(run: RunArgument) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from master.store.rundir import command

    say(f"{ask_to_stop(run)} Go on later with: {command('resume', run)}")


def ask_to_stop(run: Path) -> str:
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
            return f"Asked the master ({master}) to stop."
        withdrawn = withdraw(run)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    if withdrawn is None:
        batch = batch_of(run)
        submitted = batch is not None and batch.master_submitted(directory)
        gone = ", and its job is no longer in the queue" if submitted else ""
        look = f"{command('status', run)} says how it stands."
        raise RunError(f"no master drives {run}{gone}: there is nothing to cancel. {look}")
    return f"No master drove it. Removed: {withdrawn}."
