"""`gridml plan`: how large a chunk should be, from what the work costs and how long machines live.

`gridml check`: a program is tried out before there is a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, say
from gridml.errors import UsageError
from gridml.model.device_memory import AUTO, CPU

PLAN_EXAMPLE = (
    'Example: gridml plan --lifetime "normal(45m,10m)" --t-exec 0.05 --t-start 90 --no-push --plot goodput.png'
)
_TIMES, _LIVES = "What the work costs", "How long machines live (one of)"


def _time(text: str) -> typer.models.OptionInfo:
    return typer.Option(metavar="S", help=text, rich_help_panel=_TIMES, show_default=False)  # type: ignore[no-any-return]


def plan(
    t_exec: Annotated[
        str | None, _time("t_x, to train a vertex: such as 0.05; otherwise, with --run, what it took.")
    ] = None,
    t_copy: Annotated[str, _time("t_c, to copy a vertex; otherwise 0.")] = "0",
    t_start: Annotated[str, _time("t_s, to start a chunk; the machine may die in it; otherwise 0.")] = "0",
    t_end: Annotated[str, _time("t_e, to end a chunk; the machine may die in it; otherwise 0.")] = "0",
    push_cost: Annotated[
        str | None,
        _time("One push, which keeps what a worker has learnt so far; otherwise 0.1, with --run what it took."),
    ] = None,
    no_push: Annotated[
        bool, typer.Option("--no-push", help="A chunk counts when it ends, or not at all.", rich_help_panel=_TIMES)
    ] = False,
    wait: Annotated[str, _time("From asking for a machine until it is there; otherwise 0.")] = "0",
    boot: Annotated[str, _time("Once a life, before its first chunk; with --many-chunks; otherwise 0.")] = "0",
    many_chunks: Annotated[
        bool | None,
        typer.Option(
            "--many-chunks/--one-chunk",
            help="A machine takes chunk after chunk, or only one; otherwise one, with --run as that run did.",
            rich_help_panel=_TIMES,
            show_default=False,
        ),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            help="A distribution: normal(45m,10m), exponential(1h), weibull(0.7,2h), lognormal(45m,0.8), or what a "
            "provider says is taken a month: interruptions(5%).",
            rich_help_panel=_LIVES,
        ),
    ] = None,
    lifetimes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="Lives seen: columns duration_s,ended (0: still living).", rich_help_panel=_LIVES
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Machines that came and went: Bamboo, SkyPilot, spot prices.", rich_help_panel=_LIVES),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The workers of a run, finished or not.", rich_help_panel=_LIVES),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Machines at once; with --vertices it keeps the end of an epoch short.")
    ] = None,
    vertices: Annotated[int | None, typer.Option(help="Vertices of an epoch.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the vertices; with --batch it says how many workers are of use.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Vertices of a batch of the program.")] = None,
    replica: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of all that is replicated, such as 100MB: pushes of it are tried out here."),
    ] = None,
    compress: Annotated[
        str | None, typer.Option(help="What pushes carry, with --replica: none, int8 or int4.", show_default=False)
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py",
            help="A program: says whether a run of it would place its vertices, how, and what that can save at most.",
        ),
    ] = None,
    largest: Annotated[int | None, typer.Option(help="Vertices that fit into a machine's memory.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw goodput against chunk size into a .png, .pdf or .svg."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")] = False,
) -> None:
    """Choose the size of a chunk, and say why.

    Goodput is the share of a machine's time that goes into training that is kept.

    Times (S) are seconds, or have a unit: 90s, 45m, 1.5h.
    """
    from master.planning.lifetime_sources import LifetimeSource
    from master.planning.plan import PlanOptions, make_plan

    chosen = make_plan(
        PlanOptions(
            source=LifetimeSource(lifetime=lifetime, lifetimes=lifetimes, trace=trace, run=run),
            t_exec=t_exec,
            t_copy=t_copy,
            t_start=t_start,
            t_end=t_end,
            push_cost=push_cost,
            no_push=no_push,
            wait=wait,
            boot=boot,
            many=many_chunks,
            workers=workers,
            vertices=vertices,
            largest=largest,
            epochs=epochs,
            batch=batch,
            replica=replica,
            compress=compress,
            program=program,
        ),
        say=lambda text: typer.echo(text, err=True),
    )
    if plot is not None:
        from master.views.plot import plot_plan

        plot_plan(chosen, plot)
    if as_json:
        from master.views.console import json_text

        typer.echo(json_text(chosen.to_json(), indent=2))
    else:
        from master.views.render_plan import print_plan

        print_plan(chosen)


CHECK_EXAMPLE = "Example: gridml check mnist.py"


def check(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="The Python file.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Of the replica's first values.")] = 0,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="What f runs on: as in gridml run.")] = AUTO,
    as_json: Json = False,
) -> None:
    """Try out every part of a program once: graph, factories, optimiser, schedule, f on a batch, g, evaluate."""
    from gridml.engine.devices import NoDeviceError
    from master.planning.trial import try_out
    from master.views.console import json_text

    try:
        trial = try_out(program.absolute(), seed, device)
    except NoDeviceError as error:
        raise UsageError(str(error)) from None
    if as_json:
        typer.echo(json_text(trial.to_json(), indent=2))
        return
    vertices = ", ".join(f"{count:,} {name}" for name, count in trial.vertices.items())
    say(f"graph      {vertices}")
    say(f"replica    {trial.replica_bytes / 1e6:,.3g} MB in {trial.tensors:,} tensors and fields")
    where = "" if trial.device == CPU else f" on {trial.device}"
    took = f"{trial.batch:,} vertices took {trial.batch_s * 1e3:,.3g} ms{where}"
    say(f"f          {took}, and moved {_listed(trial.moved)}")
    metrics = ", ".join(f"{name} {value}" for name, value in trial.metrics.items())
    say(f"evaluate   {metrics or 'says nothing'}")
    for place, settings in enumerate(trial.settings):
        say(f"{'' if place else 'settings':11}{settings}")
    for odd in trial.odd:
        say(f"Warning: {odd}", err=True)
    say(f"{program.name} can be run: gridml run {program}")


def _listed(names: tuple[str, ...], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "nothing"
