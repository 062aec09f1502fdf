"""`gridml check`: a program is tried out before there is a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gridml.commands.arguments import Json, say
from gridml.errors import UsageError
from gridml.model.device_names import AUTO, CPU

EXAMPLE = "Example: gridml check mnist.py"


def check(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="The Python file.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Of the replica's first values.")] = 0,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="What f runs on: as in gridml run.")] = AUTO,
    as_json: Json = False,
) -> None:
    """Try out every part of a program once: graph, factories, optimiser, schedule, f on a batch, g, evaluate."""
    from gridml.engine.devices import NoDeviceError
    from master.planning.trial import try_out
    from master.views.json_text import json_text

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
