"""`gridml report`, `gridml status`, `gridml watch` and `gridml export`: commands that read a run and change nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

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


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:WHICH]",
            help="Directory of the run; with :best, :v57 or :e3 an earlier replica of it.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .parquet, .csv, .tsv or .npz file. Without it: list the tables and their columns.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="The vertex type. Not needed if only one has several vertices. Type.edges: mutable fields of edges.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write what a run computed to a file: a row for each vertex of a type, with its own id and its fields.

    Example: gridml export runs/pagerank-20260401-120000 --type Page --out ranks.parquet
    """
    from gridml.api.tables import check_format, chosen, rows_of, tables_of, write

    if out is not None:
        check_format(out)
    tables = tables_of("gridml export", run)
    if out is not None or name is not None:
        name, columns = chosen(tables, name)
        tables = {name: columns}
    facts = {
        each: {"rows": rows_of(columns), "columns": {of: _described(values) for of, values in columns.items()}}
        for each, columns in tables.items()
    }
    lines = [
        f"{each}: {rows_of(columns):,} row{'s' * (rows_of(columns) != 1)}, with "
        + ", ".join(f"{of} {_described(values)}" for of, values in columns.items())
        for each, columns in tables.items()
    ]
    if out is not None:
        write(columns, out)
        lines = [f"Wrote {out}. {lines[0]}"]
    elif not tables:
        lines = ["The run has no arrays of vertices; gridml.load returns what modules learnt."]
    print_result(facts, *lines, as_json=as_json)


def _described(values: Any) -> str:
    """Return the dtype and shape of a column's values, such as "float32 (32,)"."""
    kind = "text" if values.dtype.kind == "U" else str(values.dtype)
    return f"{kind} {values.shape[1:]}" if values.ndim > 1 else kind
