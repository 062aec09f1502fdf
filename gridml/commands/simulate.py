"""`gridml simulate`: a run on machines that are only imagined, by the real master, under a clock that jumps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gridml.commands.arguments import argument, as_typer_reads
from gridml.run_names import claimed_root

EXAMPLE = (
    "Example: gridml simulate --cost t_x=0.05,t_s=30,push=0.5 --vertices 1000000 --lifetime 'exponential(45m)' "
    "--travel 0.5s"
)
_Program = Annotated[
    Path | None,
    typer.Argument(
        metavar="[PROGRAM]", help="Really train this program; without it workers only take time.", show_default=False
    ),
]


def simulate_command() -> Callable[..., None]:
    """Return the command, with the signature that its options give it."""
    from master.backends.simulated_plugin import simulate_options

    text = (
        "Play a run on machines that are only imagined.\n\nLedger and decisions are those of a real run; time, machines"
        " and messages are simulated, and the report is in simulated seconds. Times have units as elsewhere: 90s, 45m, "
        "1.5h."
    )
    return as_typer_reads(_simulate, text, simulate_options(), argument("program", _Program, None))


def _simulate(**values: Any) -> None:
    from gridml.calls.simulating import played, world_for
    from master.simulation.result import result_of
    from master.simulation.status_line import status_line
    from master.views.json_text import json_text
    from master.views.terminal import print_report

    program, as_json = values.pop("program"), values["as_json"]
    if values["campaign"] is not None:
        _campaign(values["campaign"], values["seed"], as_json=as_json)
        return
    with claimed_root(values["run_dir"], "cost" if program is None else program.stem) as root:
        with status_line(root, quiet=as_json) as notify:
            world = world_for(program, values, root)
            played(world, root, notify)
        result = result_of(world, root)
    if as_json:
        typer.echo(json_text(result.to_json(), indent=2))
    else:
        print_report(result.report)
        typer.echo(result.summary())


def _campaign(kills: int, seed: int, *, as_json: bool) -> None:
    """Run after run until so many workers were killed. Raises LedgerError, naming the seed, for one that is wrong."""
    import dataclasses

    from master.simulation.campaign import Played, campaign
    from master.views.console import PlainConsole

    with PlainConsole(stderr=True).status("playing") as status:

        def notify(played: Played) -> None:
            status.update(f"{played.kills:,} of {kills:,} kills, {played.runs:,} runs, all exact")

        sums = campaign(kills, seed, report=notify)
    if as_json:
        typer.echo(json.dumps({"seed": seed, **dataclasses.asdict(sums)}, indent=2))
        return
    typer.echo(
        f"{sums.kills:,} kills in {sums.runs:,} runs (seeds {seed} to {seed + sums.runs - 1}), {sums.masters:,} "
        f"masters, {sums.sent:,} messages and answers, {sums.lost:,} of them lost, {sums.hostile:,} hostile "
        "values: every vertex was credited once."
    )
