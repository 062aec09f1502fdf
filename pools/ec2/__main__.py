"""Commands of the local EC2: `python -m pools.ec2 root` builds the root file system of instances, and
`python -m pools.ec2 run -- COMMAND` runs a command inside."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from pools.ec2 import control, root
from pools.ec2.machine import NoLocalEc2, unavailable

app = typer.Typer(help="A local EC2 whose instances really boot.", no_args_is_help=True, add_completion=False)


@app.command("root", epilog="Example: python -m pools.ec2 root")
def make_root() -> None:
    """Build the root file system of instances, unless it is cached."""
    _refuse_where_impossible()
    began = time.monotonic()
    made = root.prepare(say=typer.echo)
    typer.echo(f"{' on '.join(map(str, made.layers))}, {time.monotonic() - began:.1f} s")


@app.command(epilog="Example: python -m pools.ec2 run -- gridml launch examples/mnist.py --instances 4")
def run(
    command: Annotated[list[str], typer.Argument(help="Command to run control, after --.")],
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the consoles, which is kept.")] = None,
) -> None:
    """Run a command inside a local EC2, which boto3 finds by AWS_ENDPOINT_URL. Everything is removed afterwards."""
    _refuse_where_impossible()
    made = root.prepare(say=lambda said: typer.echo(said, err=True))
    with tempfile.TemporaryDirectory(prefix="gridml-ec2-") as own:
        place = (folder or Path(own)).resolve()
        done = subprocess.run(control.command(made, place, command), env=control.environment())
    sys.exit(done.returncode)


def _refuse_where_impossible() -> None:
    reason = unavailable()
    if reason is not None:
        raise NoLocalEc2(reason)


if __name__ == "__main__":
    try:
        app()
    except NoLocalEc2 as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
