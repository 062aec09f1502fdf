"""`gridml resume`: a run goes on from its last credit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gridml.commands.arguments import Json, RunArgument

EXAMPLE = "Example: gridml resume runs/mnist-20260401-120000"


def resume(
    run: RunArgument,
    program: Annotated[
        Path | None, typer.Option(help="Another file of the same graph, such as a mended one.", show_default=False)
    ] = None,
    with_changes: Annotated[
        bool,
        typer.Option(
            "--with-changes", help="Take the program and its own modules as they are now, and not the run's copy."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Go on with a run from its last credit, whatever ended it."""
    from master.launch import resume
    from master.views.terminal import drive

    file = None if program is None else program.absolute()
    drive(run, lambda environment: resume(run, environment, file, with_changes=with_changes), run.name, as_json=as_json)
