"""`gridml watch`: a run that another process drives, as it goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from gridml.commands.arguments import Json, RunArgument
from gridml.commands.status import say_status
from gridml.errors import UsageError

EXAMPLE = "Example: gridml watch runs/mnist-20260401-120000"


def watch(
    run: RunArgument,
    as_json: Json = False,
    page: Annotated[
        bool, typer.Option("--page", help="Show it in a browser of this machine instead, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Of the page; 0 is any that is free.")
    ] = 0,
) -> None:
    """Follow a run that another process drives, until it ends. Ctrl-C leaves the run alone."""
    if page:
        from master.views.page.serve import serve_page

        serve_page(run, port)
        return
    if port:
        raise UsageError("--port is that of a page: say --page, too.")
    from master.views.terminal import follow

    follow(run, as_json=as_json)
    say_status(run, as_json=as_json, in_one_line=True)
