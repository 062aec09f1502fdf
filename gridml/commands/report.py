"""`gridml report`: what a run did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gridml.commands.arguments import Json, RunArgument

EXAMPLE = "Example: gridml report runs/mnist-20260401-120000 --plot mnist.png"


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
    from master.views.json_text import json_text
    from master.views.report import report
    from master.views.terminal import print_report

    figures = report(run)
    if plot is not None:
        from master.views.plot import plot_report

        plot_report(figures, run, plot)
    if html is not None:
        from master.views.page.document import write_page

        write_page(run, html)
    if as_json:
        typer.echo(json_text(figures.to_json(), indent=2))
    else:
        print_report(figures)
