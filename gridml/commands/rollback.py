"""`gridml rollback`: a run is taken back to an earlier version of its replica."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from gridml.commands.arguments import Json, RunArgument

EXAMPLE = "Example: gridml rollback runs/mnist-20260401-120000 --to e3"


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
    from master.rollback import rollback
    from master.store.reader import opened
    from master.store.rundir import command
    from master.store.undo import points

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
