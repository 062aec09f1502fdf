"""`gridml plan` and `gridml check`: commands to use before a run.

`plan` chooses a chunk size from the cost of the work and the lifetimes of machines; `check` tries a program out.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, echo, print_result, takes_options
from gridml.errors import UsageError
from gridml.model.device_memory import AUTO, CPU
from master.planning.options import PlanOptions


@takes_options(PlanOptions)
def plan(
    options: PlanOptions,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also plot goodput against chunk size to a .png, .pdf or .svg file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the chunk size, and explain the choice.

    Goodput is the share of a machine's time that is spent on training that is kept.

    Times (S) are in seconds, or have a unit: 90s, 45m, 1.5h.

    Example: gridml plan --lifetime "normal(45m,10m)" --t-exec 0.05 --t-start 90 --no-push --plot goodput.png
    """
    from master.planning.plan import make_plan
    from master.views.render_plan import print_plan

    # Notes go to stderr: with --json, stdout is for the result alone.
    chosen = make_plan(options, notify=partial(typer.echo, err=True))
    if plot is not None:
        from master.views.plot import plot_plan

        plot_plan(chosen, plot)
    print_result(chosen.to_json(), partial(print_plan, chosen), as_json=as_json)


def check(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="Python file of the program.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Random seed of the replica's initial values.")] = 0,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Device of f, as in gridml run.")] = AUTO,
    as_json: Json = False,
) -> None:
    """Run every part of a program once: graph, factories, optimiser, schedule, f on a batch, g, evaluate.

    Example: gridml check mnist.py
    """
    from gridml.engine.devices import NoDeviceError
    from master.planning.trial import try_out

    try:
        trial = try_out(program.absolute(), seed, device)
    except NoDeviceError as error:  # here the user's mistake; in a worker, a fault of its machine
        raise UsageError(str(error)) from None
    # Text for people; programs get the same figures by name from `trial.to_json()`.
    vertices = ", ".join(f"{count:,} {name}" for name, count in trial.vertices.items())
    metrics = ", ".join(f"{name} {value}" for name, value in trial.metrics.items())
    took = f"{trial.batch_s * 1e3:,.3g} ms{'' if trial.device == CPU else f' on {trial.device}'}"
    print_result(
        trial.to_json(),
        f"graph      {vertices}",
        f"replica    {trial.replica_bytes / 1e6:,.3g} MB in {trial.tensors:,} tensors and fields",
        f"f          {trial.batch:,} vertices took {took}, and moved {_listed(trial.moved)}",
        f"evaluate   {metrics or 'returns nothing'}{f', on {trial.evaluated_on}' if trial.evaluated_on else ''}",
        *([f"ticks      {trial.ticks}"] if trial.ticks else []),
        *(f"{'' if place else 'settings':11}{settings}" for place, settings in enumerate(trial.settings)),
        *(partial(echo, f"Warning: {odd}", err=True) for odd in trial.odd),
        f"{program.name} can be run: gridml run {program}",
        as_json=as_json,
    )


def _listed(names: tuple[str, ...], limit: int = 4) -> str:
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown or "nothing"
