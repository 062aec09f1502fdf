"""`gridml resume`: a run goes on from its last credit, with other numbers where they may be others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gridml.commands.arguments import RunArgument, argument, as_typer_reads

EXAMPLE = "Example: gridml resume runs/mnist-20260401-120000"


def resume_command() -> Callable[..., None]:
    """Return the command, with the signature that the settings and the back ends' options give it."""
    from gridml.calls.options import resume_options

    text = (
        "Go on with a run from its last credit, whatever ended it.\n\nOptions that are given hold from now on; jobs "
        "that are queued or run already stay as they are."
    )
    return as_typer_reads(_resume, text, resume_options(), argument("run", RunArgument))


def _resume(**values: Any) -> None:
    from gridml.calls.resuming import taking_up
    from master.views.terminal import drive

    run = values.pop("run")
    drive(run, taking_up(run, values), run.name, as_json=values["as_json"], resumed=True)
