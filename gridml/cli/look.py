"""`gridml report`: what a run did.

`gridml status`: how far a run is.

`gridml watch`: a run that another process drives, as it goes on.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, RunArgument, say
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
    from master.views.console import json_text
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


STATUS_EXAMPLE = "Example: gridml status runs/mnist-20260401-120000"


def status(run: RunArgument, as_json: Json = False) -> None:
    """Say in a few lines how far a run is."""
    say_status(run, as_json=as_json)


def say_status(run: Path, *, as_json: bool, in_one_line: bool = False) -> None:
    """Say how far a run is, in words or as a JSON object. Raises LedgerError."""
    import dataclasses

    from master.backends.registry import batch_of
    from master.store.reader import connect, explained, holder, read_clock, read_facts, read_now
    from master.store.rundir import RunDirectory, RunStatus, command
    from master.views.console import json_text
    from master.views.live import NAMED, line
    from master.views.progress import at_rest, read_progress
    from master.views.render import duration

    connection, master = connect(run), holder(run)
    with closing(connection), explained(RunDirectory(run).ledger):
        if master is None:
            progress = at_rest(read_progress(connection, read_clock(connection, run).end_s))
        else:
            progress = read_progress(connection, read_now(connection))
        because = read_facts(connection).get("stopped_because")
    reason = because if progress.status in (RunStatus.FAILED, RunStatus.CANCELLED) else None
    batch = batch_of(run) if master is None and progress.status is not RunStatus.FINISHED else None
    job = None if batch is None else batch.master_job(RunDirectory(run))
    if as_json:
        answer = {"run_dir": str(run), **progress.to_json(), "stopped_because": reason, "master": master}
        answer["master_job"] = None if job is None else dataclasses.asdict(job)
        typer.echo(json_text(answer, indent=None if in_one_line else 2))
        return
    say(f"{run}: {progress.status}")
    say(line(progress))
    if progress.asked is not None:
        say(f"{progress.asked:,} workers are asked for, {progress.asked_because}")
    if progress.helpful is not None:
        say(f"About {progress.helpful:,} workers help: {progress.helpful_because}")
    for settings in progress.settings:
        say(f"Settings: {settings}")
    if progress.placement is not None:
        say(f"Placement: {progress.placement}")
    for held in progress.held_because:
        say(f"Held: {', '.join(held.workers[:NAMED])}{', …' if len(held.workers) > NAMED else ''}: {held.because}")
    for warned in progress.warnings:
        say(f"Warning, {duration(warned.seconds_ago)} ago: {warned.text}")
    for avoided in progress.avoided:
        say(f"{avoided.worker} on {avoided.machine or 'its machine'} is avoided: {avoided.because}")
    for distrusted in (*progress.quarantined, *progress.avoided_machines):
        say(str(distrusted))
    if reason:
        say(reason)
    if job is not None:
        say(f"Its master is {job}")
    elif progress.status in (RunStatus.STOPPED, RunStatus.SUBMITTED):
        say(f"No master drives it. Go on from its last credit with: {command('resume', run)}")


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
        from master.views.page.server import serve_page

        serve_page(run, port)
        return
    if port:
        raise UsageError("--port is that of a page: say --page, too.")
    from master.views.terminal import follow

    follow(run, as_json=as_json)
    say_status(run, as_json=as_json, in_one_line=True)
