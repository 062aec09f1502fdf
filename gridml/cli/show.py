"""`gridml report`, `gridml status` and `gridml watch`: commands that read a run and change nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, JsonLines, RunArgument, print_result
from gridml.errors import UsageError


def report(
    run: RunArgument,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also plot it to a .png, .pdf or .svg file.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write it as one HTML file, usable offline.", show_default=False),
    ] = None,
) -> None:
    """Report what a run has done, how fast, and what was lost. Works while the run is in progress.

    Example: gridml report runs/mnist-20260401-120000 --plot mnist.png
    """
    from master.views.report import report
    from master.views.terminal import print_report

    figures = report(run)
    if plot is not None:
        from master.views.plot import plot_report

        plot_report(figures, run, plot)
    if html is not None:
        from master.views.page.document import write_page

        write_page(run, html)
    print_result(figures.to_json(), partial(print_report, figures), as_json=as_json)


def status(run: RunArgument, as_json: Json = False) -> None:
    """Show the progress of a run in a few lines.

    Example: gridml status runs/mnist-20260401-120000
    """
    from master.views.terminal import print_status

    print_status(run, as_json=as_json)


def watch(
    run: RunArgument,
    as_json: JsonLines = False,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a live page for a browser on this machine instead, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of the page; 0 picks a free one.")
    ] = 0,
) -> None:
    """Follow a run that another process drives, until it ends. Ctrl-C stops watching; the run continues.

    Example: gridml watch runs/mnist-20260401-120000
    """
    if page:
        from master.views.page.page_server import serve_page

        serve_page(run, port)
        return
    if port:  # 0, the default, counts as not given
        raise UsageError("got --port without --page; expected both, since --port is the port of the page.")
    from master.views.terminal import follow, print_status

    follow(run, as_json=as_json)
    print_status(run, as_json=as_json, in_one_line=True)
