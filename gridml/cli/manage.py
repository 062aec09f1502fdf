"""`gridml cancel`: a run is stopped, and can go on later.

`gridml scale`: a run goes on with more workers, or with fewer.

`gridml rollback`: a run is taken back to an earlier version of its replica.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from typing import Annotated

import typer

from gridml.cli.arguments import Json, RunArgument, say

CANCEL_EXAMPLE = "Example: gridml cancel runs/mnist-20260401-120000"


def cancel(run: RunArgument, as_json: Json = False) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from gridml.api.handle import ask_to_stop
    from master.store.rundir import command

    done = ask_to_stop(run)
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run), **asdict(done)}, indent=2))
    else:
        say(f"{done} Go on later with: {command('resume', run)}")


SCALE_EXAMPLE = "Example: gridml scale runs/mnist-20260401-120000 --workers 40"


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


ROLLBACK_EXAMPLE = "Example: gridml rollback runs/mnist-20260401-120000 --to e3"


def rollback(
    run: RunArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|EPOCH",
            help="v57 is a version, e3 the end of the third epoch; without it those there are.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a run back to a version that is kept: what was credited since is undone, and trained again by resume."""
    from master.store.credits import points
    from master.store.reader import opened
    from master.store.rundir import command
    from master.takeover import rollback

    if to is None:
        with opened(run) as ledger:
            kept = points(ledger)
        if as_json:
            typer.echo(json.dumps([dataclasses.asdict(point) for point in kept], indent=2))
            return
        for point in kept:
            epoch = f", the end of epoch {point.epoch + 1} (e{point.epoch + 1})" if point.epoch is not None else ""
            typer.echo(f"v{point.version}: {point.credited:,} vertices credited, {point.undoes:,} since{epoch}")
        return
    done = rollback(run, to)
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run), **dataclasses.asdict(done)}, indent=2))
        return
    typer.echo(f"{run} stands at version {done.point.version}: {done.undone.vertices:,} vertices were undone.")
    typer.echo(f"Go on from there with: {command('resume', run)}")
