"""`gridml cancel`, `gridml scale` and `gridml rollback`: commands that change an existing run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gridml.cli.arguments import Json, RunArgument, print_result


def cancel(run: RunArgument, as_json: Json = False) -> None:
    """Stop a run. It keeps what is credited, and gridml resume continues it.

    Example: gridml cancel runs/mnist-20260401-120000
    """
    from gridml.api.handle import request_stop
    from master.store.rundir import command

    done = request_stop(run)
    text = f"{done} Resume later with: {command('resume', run)}"
    print_result({"run_dir": str(run), **asdict(done)}, text, as_json=as_json)


def scale(
    run: RunArgument,
    workers: Annotated[
        int, typer.Option(help="Number of concurrent workers from now on. Surplus workers push their work and leave.")
    ],
    as_json: Json = False,
) -> None:
    """Change the number of workers of a run. A running master applies it at once; otherwise the next resume does.

    Example: gridml scale runs/mnist-20260401-120000 --workers 40
    """
    from master.scaling import request
    from master.store.rundir import command

    done = request(run, workers)
    text = f"with --workers {done.workers} instead of {done.before}"
    if done.master is not None:
        text = f"Asked the master ({done.master}) to continue {text}."
    else:
        text = f"No master drives it. The next one continues {text}: {command('resume', run)}"
    print_result({"run_dir": str(run), **asdict(done)}, text, as_json=as_json)


def rollback(
    run: RunArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|EPOCH",
            help="A version (v57) or the end of an epoch (e3). Without it: list the versions that are available.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Roll a run back to an earlier version. What was credited since is undone; gridml resume trains it again.

    Example: gridml rollback runs/mnist-20260401-120000 --to e3
    """
    from master.store.rundir import command
    from master.takeover import offered, rollback

    if to is None:
        kept = offered(run)
        # Epochs count from 0 in the ledger and from 1 for users.
        epochs = (
            "" if each.epoch is None else f", the end of epoch {each.epoch + 1} (e{each.epoch + 1})" for each in kept
        )
        lines = (
            f"v{each.version}: {each.credited:,} vertices credited, {each.undoes:,} since{epoch}"
            for each, epoch in zip(kept, epochs, strict=True)
        )
        print_result([asdict(each) for each in kept], *lines, as_json=as_json)
        return
    done = rollback(run, to)
    print_result(
        {"run_dir": str(run), **asdict(done)},
        f"{run} is at version {done.point.version}: {done.undone.vertices:,} vertices were undone.",
        f"Resume from there with: {command('resume', run)}",
        as_json=as_json,
    )
