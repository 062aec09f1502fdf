"""`gridml report`: what a run did.

`gridml status`: how far a run is.

`gridml watch`: a run that another process drives, as it goes on.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, RunArgument, answer
from gridml.errors import UsageError

REPORT_EXAMPLE = "Example: gridml report runs/mnist-20260401-120000 --plot mnist.png"


def report(
    run: RunArgument,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the run into a .png, .pdf or .svg.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the run as a page: one file, no network.", show_default=False),
    ] = None,
) -> None:
    """What a run did, how fast, and what was lost; also while it goes on."""
    from master.views.report import report
    from master.views.terminal import print_report

    figures = report(run)
    if plot is not None:
        from master.views.plot import plot_report

        plot_report(figures, run, plot)
    if html is not None:
        from master.views.page.document import write_page

        write_page(run, html)
    answer(figures.to_json(), partial(print_report, figures), as_json=as_json)


STATUS_EXAMPLE = "Example: gridml status runs/mnist-20260401-120000"


def status(run: RunArgument, as_json: Json = False) -> None:
    """Say in a few lines how far a run is."""
    from master.views.terminal import print_status

    print_status(run, as_json=as_json)


WATCH_EXAMPLE = "Example: gridml watch runs/mnist-20260401-120000"


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
        from master.views.page.page_server import serve_page

        serve_page(run, port)
        return
    if port:
        raise UsageError("--port is that of a page: say --page, too.")
    from master.views.terminal import follow, print_status

    follow(run, as_json=as_json)
    print_status(run, as_json=as_json, in_one_line=True)
