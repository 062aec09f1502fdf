"""`gridml cancel`: a run is stopped, and can go on later."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from gridml.commands.arguments import Json, RunArgument, say

EXAMPLE = "Example: gridml cancel runs/mnist-20260401-120000"


def cancel(run: RunArgument, as_json: Json = False) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from gridml.calls.handle import ask_to_stop
    from master.store.rundir import command

    done = ask_to_stop(run)
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run), **asdict(done)}, indent=2))
    else:
        say(f"{done} Go on later with: {command('resume', run)}")
