"""`gridml plan`: how large a chunk should be, from what the work costs and how long machines live.

`gridml check`: a program is tried out before there is a run.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, answer, say, takes_options
from gridml.errors import UsageError
from gridml.model.device_memory import AUTO, CPU
from master.planning.options import PlanOptions

PLAN_EXAMPLE = (
    'Example: gridml plan --lifetime "normal(45m,10m)" --t-exec 0.05 --t-start 90 --no-push --plot goodput.png'
)


@takes_options(PlanOptions)
def plan(
    options: PlanOptions,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw goodput against chunk size into a .png, .pdf or .svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the size of a chunk, and say why.

    Goodput is the share of a machine's time that goes into training that is kept.

    Times (S) are seconds, or have a unit: 90s, 45m, 1.5h.
    """
    from master.planning.plan import make_plan
    from master.views.render_plan import print_plan

    chosen = make_plan(options, say=partial(typer.echo, err=True))
    if plot is not None:
        from master.views.plot import plot_plan

        plot_plan(chosen, plot)
    answer(chosen.to_json(), partial(print_plan, chosen), as_json=as_json)


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

    try:
        trial = try_out(program.absolute(), seed, device)
    except NoDeviceError as error:
        raise UsageError(str(error)) from None
    vertices = ", ".join(f"{count:,} {name}" for name, count in trial.vertices.items())
    metrics = ", ".join(f"{name} {value}" for name, value in trial.metrics.items())
    took = f"{trial.batch_s * 1e3:,.3g} ms{'' if trial.device == CPU else f' on {trial.device}'}"
    answer(
        trial.to_json(),
        f"graph      {vertices}",
        f"replica    {trial.replica_bytes / 1e6:,.3g} MB in {trial.tensors:,} tensors and fields",
        f"f          {trial.batch:,} vertices took {took}, and moved {_listed(trial.moved)}",
        f"evaluate   {metrics or 'says nothing'}",
        *(f"{'' if place else 'settings':11}{settings}" for place, settings in enumerate(trial.settings)),
        *(partial(say, f"Warning: {odd}", err=True) for odd in trial.odd),
        f"{program.name} can be run: gridml run {program}",
        as_json=as_json,
    )


def _listed(names: tuple[str, ...], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "nothing"
