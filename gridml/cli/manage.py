"""`gridml cancel`: a run is stopped, and can go on later.

`gridml scale`: a run goes on with more workers, or with fewer.

`gridml rollback`: a run is taken back to an earlier version of its replica.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gridml.cli.arguments import Json, RunArgument, answer

CANCEL_EXAMPLE = "Example: gridml cancel runs/mnist-20260401-120000"


def cancel(run: RunArgument, as_json: Json = False) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from gridml.api.handle import request_stop
    from master.store.rundir import command

    done = request_stop(run)
    text = f"{done} Go on later with: {command('resume', run)}"
    answer({"run_dir": str(run), **asdict(done)}, text, as_json=as_json)


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
    text = f"with --workers {done.workers} instead of {done.before}"
    if done.master is not None:
        text = f"Asked the master ({done.master}) to go on {text}."
    else:
        text = f"No master drives it: the next one goes on {text}: {command('resume', run)}"
    answer({"run_dir": str(run), **asdict(done)}, text, as_json=as_json)


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
    from master.store.credits import rollback_points
    from master.store.reader import opened
    from master.store.rundir import command
    from master.takeover import rollback

    if to is None:
        with opened(run) as ledger:
            kept = rollback_points(ledger)
        epochs = (
            "" if each.epoch is None else f", the end of epoch {each.epoch + 1} (e{each.epoch + 1})" for each in kept
        )
        lines = (
            f"v{each.version}: {each.credited:,} vertices credited, {each.undoes:,} since{epoch}"
            for each, epoch in zip(kept, epochs, strict=True)
        )
        answer([asdict(each) for each in kept], *lines, as_json=as_json)
        return
    done = rollback(run, to)
    answer(
        {"run_dir": str(run), **asdict(done)},
        f"{run} stands at version {done.point.version}: {done.undone.vertices:,} vertices were undone.",
        f"Go on from there with: {command('resume', run)}",
        as_json=as_json,
    )
