"""Arguments and options that several commands have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
RunDir = Annotated[
    Path | None, typer.Option(help="Where the run is kept; otherwise runs/PROGRAM-TIME.", show_default=False)
]


def usual_root(program_name: str) -> Path:
    """Return where a run of a program is kept unless its user says."""
    return Path("runs") / f"{program_name}-{time.strftime('%Y%m%d-%H%M%S')}"
