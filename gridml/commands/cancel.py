"""`gridml cancel`: a run is stopped, and can go on later."""

from __future__ import annotations

import os

from gridml.commands.arguments import RunArgument, say
from gridml.errors import LedgerError, RunError, UsageError

EXAMPLE = "Example: gridml cancel runs/mnist-20260401-120000"


def cancel(run: RunArgument) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from master.backends.registry import batch_of, withdraw
    from master.store.reader import holder
    from master.store.rundir import RunDirectory, command

    directory, then = RunDirectory(run), command("resume", run)
    if not os.path.isfile(directory.ledger):
        raise LedgerError(f"{run} is not a run: it has no ledger. Name the directory that gridml run made.")
    try:
        if (master := holder(run)) is not None:
            (run / "cancel").touch()
            say(f"Asked the master ({master}) to stop. Go on later with: {then}")
            return
        withdrawn = withdraw(run)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    if withdrawn is None:
        batch = batch_of(run)
        submitted = batch is not None and batch.master_submitted(directory)
        gone = ", and its job is no longer in the queue" if submitted else ""
        look = f"{command('status', run)} says how it stands."
        raise RunError(f"no master drives {run}{gone}: there is nothing to cancel. {look}")
    say(f"No master drove it. Removed: {withdrawn}. Go on later with: {then}")
