"""Commands on a run that exists: show it (status, watch, report, export) or change it (cancel, scale, rollback)."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gridml.cli.arguments import Json, JsonLines, RunArgument, print_result
from gridml.errors import UsageError


def cancel(run: RunArgument, as_json: Json = False) -> None:
    """Stop a run. It keeps what is credited, and gridml resume continues it.

    Example: gridml cancel runs/mnist-20260401-120000
    """
    from gridml.api.handle import request_stop
    from master.store.rundir import command

    done = request_stop(run)
    text = f"{done} Resume later with: {command('resume', run)}"
    print_result({"run_dir": str(run), **asdict(done)}, text, as_json=as_json)


def scale(
    run: RunArgument,
    workers: Annotated[
        int, typer.Option(help="Number of concurrent workers from now on. Surplus workers push their work and leave.")
    ],
    as_json: Json = False,
) -> None:
    """Change the number of workers of a run. A running master applies it at once; otherwise the next resume does.

    Example: gridml scale runs/mnist-20260401-120000 --workers 40
    """
    from master.scaling import request
    from master.store.rundir import command

    done = request(run, workers)
    text = f"with --workers {done.workers} instead of {done.before}"
    if done.master is not None:
        text = f"Asked the master ({done.master}) to continue {text}."
    else:
        text = f"No master drives it. The next one continues {text}: {command('resume', run)}"
    print_result({"run_dir": str(run), **asdict(done)}, text, as_json=as_json)


def rollback(
    run: RunArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|EPOCH",
            help="A version (v57) or the end of an epoch (e3). Without it: list the versions that are available.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Roll a run back to an earlier version. What was credited since is undone; gridml resume trains it again.

    Example: gridml rollback runs/mnist-20260401-120000 --to e3
    """
    from master.store.rundir import command
    from master.takeover import offered, rollback

    if to is None:
        kept = offered(run)
        # Epochs count from 0 in the ledger and from 1 for users.
        epochs = (
            "" if each.epoch is None else f", the end of epoch {each.epoch + 1} (e{each.epoch + 1})" for each in kept
        )
        lines = (
            f"v{each.version}: {each.credited:,} vertices credited, {each.undoes:,} since{epoch}"
            for each, epoch in zip(kept, epochs, strict=True)
        )
        print_result([asdict(each) for each in kept], *lines, as_json=as_json)
        return
    done = rollback(run, to)
    print_result(
        {"run_dir": str(run), **asdict(done)},
        f"{run} is at version {done.point.version}: {done.undone.vertices:,} vertices were undone.",
        f"Resume from there with: {command('resume', run)}",
        as_json=as_json,
    )


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
