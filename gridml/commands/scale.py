"""`gridml scale`: a run goes on with more workers, or with fewer."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from gridml.commands.arguments import Json, RunArgument, say

EXAMPLE = "Example: gridml scale runs/mnist-20260401-120000 --workers 40"


def scale(
    run: RunArgument,
    workers: Annotated[
        int, typer.Option(help="Workers at once, from now on; those that are too many push, and leave.")
    ],
    as_json: Json = False,
) -> None:
    """Let a run go on with more workers, or with fewer. It is taken up at once, or by the next resume."""
    from master.scaling import request
    from master.store.rundir import command

    done = request(run, workers)
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run), **dataclasses.asdict(done)}, indent=2))
    elif done.master is not None:
        say(f"Asked the master ({done.master}) to go on with --workers {done.workers} instead of {done.before}.")
    else:
        then = command("resume", run)
        say(f"No master drives it: the next one goes on with --workers {done.workers} instead of {done.before}: {then}")
