"""Arguments and options that several commands have, and how commands speak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gridml.protocol.text import printable

JSON = "--json"
INTERRUPTED = 130  # exit status of a command that Ctrl-C ended

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
Json = Annotated[bool, typer.Option(JSON, help="JSON on standard output, for programs.")]
RunDir = Annotated[
    Path | None, typer.Option(help="Where the run is kept; otherwise runs/PROGRAM-TIME.", show_default=False)
]


def say(text: str, *, err: bool = False) -> None:
    """Print text as text, whatever is in it: what a terminal would obey is shown as an escape."""
    typer.echo(printable(text, sys.maxsize), err=err)
