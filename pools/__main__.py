"""Raise a pool and take it down again: `python -m pools up`, `python -m pools down`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from pools import pool
from pools.release import NoCondor

app = typer.Typer(help="Real HTCondor pools on this machine.", no_args_is_help=True, add_completion=False)
FOLDER = Path("runs") / "pool"
Folder = Annotated[Path, typer.Option(metavar="DIR", help="Where the pool's files lie.")]


@app.command(epilog="Example: python -m pools up --firewalled")
def up(
    firewalled: Annotated[bool, typer.Option(help="Workers behind firewalls, in network namespaces (root).")] = False,
    workers: Annotated[int, typer.Option(help="Worker hosts behind firewalls.")] = 4,
    folder: Folder = FOLDER,
) -> None:
    """Raise a pool, and say how to use it."""
    began = time.monotonic()
    raised = pool.raise_firewalled(folder, workers=workers) if firewalled else pool.raise_personal(folder)
    typer.echo(f"HTCondor {raised.release.version} is up after {time.monotonic() - began:.1f} s. To use it:")
    typer.echo(f"  export CONDOR_CONFIG={raised.config} PATH={raised.release.usr}/bin:$PATH")
    typer.echo(f"  gridml submit examples/mnist.py\nTo end it: python -m pools down --folder {folder}")


@app.command(epilog="Example: python -m pools down")
def down(folder: Folder = FOLDER) -> None:
    """End the daemons of a pool, and its jobs."""
    pool.take_down(pool.remembered(folder))
    typer.echo("The pool is down.")


if __name__ == "__main__":
    try:
        app()
    except NoCondor as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
