"""`gridml watch`: a run that another process drives, as it goes on."""

from __future__ import annotations

from gridml.commands.arguments import Json, RunArgument
from gridml.commands.status import status

EXAMPLE = "Example: gridml watch runs/mnist-20260401-120000"


def watch(run: RunArgument, as_json: Json = False) -> None:
    """Follow a run that another process drives, until it ends. Ctrl-C leaves the run alone."""
    from master.views.terminal import follow

    follow(run, as_json=as_json)
    status(run, as_json=as_json)
