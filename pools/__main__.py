"""Commands that start and stop a pool: `python -m pools up`, `python -m pools down`."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from pools import pool
from pools.release import NoCondor

app = typer.Typer(help="Real HTCondor pools on this machine.", no_args_is_help=True, add_completion=False)
FOLDER = Path("runs") / "pool"
Folder = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the pool's files.")]


@app.command(epilog="Example: python -m pools up --firewalled")
def up(
    firewalled: Annotated[bool, typer.Option(help="Workers behind firewalls, in network namespaces (root).")] = False,
    workers: Annotated[int, typer.Option(help="Worker hosts behind firewalls.")] = 4,
    folder: Folder = FOLDER,
) -> None:
    """Start a pool, and print how to use it. A running one, perhaps with a run on it, is left as it is."""
    began = time.monotonic()
    there = pool.standing(folder)
    if there is not None and bool(there.workers) != firewalled:
        kind = "workers behind firewalls" if there.workers else "one host"
        raise NoCondor(f"a pool of {kind} is up in {folder} already; end it with: {_down(folder)}")
    if there is None:
        there = pool.firewalled(folder, workers=workers) if firewalled else pool.personal(folder)
        typer.echo(f"HTCondor {there.release.version} is up after {time.monotonic() - began:.1f} s. To use it:")
    else:
        typer.echo(f"HTCondor {there.release.version} is up in {folder} already. To use it:")
    typer.echo(f"  export {_use(there)}\n  gridml submit examples/mnist.py\nTo end it: {_down(folder)}")


def _use(there: pool.Pool) -> str:
    """Return the shell variables to use a pool: CONDOR_CONFIG, and PATH with the commands of HTCondor and gridml."""
    config, here = shlex.quote(str(there.config)), shlex.quote(str(Path(sys.executable).parent))
    return f"CONDOR_CONFIG={config} PATH={here}:{shlex.quote(str(there.release.usr))}/bin:$PATH"


def _down(folder: Path) -> str:
    return f"{shlex.quote(sys.executable)} -m pools down --folder {shlex.quote(str(folder))}"


@app.command(epilog='Example: eval "$(python -m pools env)"')
def env(folder: Folder = FOLDER) -> None:
    """Print what a shell must set to use a pool that is up."""
    typer.echo(f"export {_use(pool.remembered(folder))}")


@app.command(epilog="Example: python -m pools down")
def down(folder: Folder = FOLDER) -> None:
    """Stop the daemons of a pool, and its jobs."""
    pool.take_down(pool.remembered(folder))
    typer.echo("The pool is down.")


if __name__ == "__main__":
    try:
        app()
    except NoCondor as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
