"""Arguments and options that several commands have, and how commands speak."""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from gridml.protocol.text import printable

JSON = "--json"

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
Json = Annotated[bool, typer.Option(JSON, help="JSON on standard output, for programs.")]
RunDir = Annotated[
    Path | None, typer.Option(help="Where the run is kept; otherwise runs/PROGRAM-TIME.", show_default=False)
]


def usual_root(program_name: str) -> Path:
    """Return where a run of a program is kept unless its user says: a directory that is not there yet."""
    usual = Path("runs") / f"{program_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (usual.with_name(f"{usual.name}-{number}") for number in count(2))
    return usual if not usual.exists() else next(name for name in names if not name.exists())


def say(text: str, *, err: bool = False) -> None:
    """Print text as text, whatever is in it: what a terminal would obey is shown as an escape."""
    typer.echo(printable(text, sys.maxsize), err=err)
