"""Commands that begin or resume a run, and those that look ahead: check and plan.

Each back end can define one start command (`gridml run`, `gridml submit`, `gridml launch`). The command has the common
options and the back end's own (`gridml.api.run_calls`). `gridml resume` continues a run from its last credit. `gridml
simulate` runs the real master on simulated machines under a virtual clock.

`plan` chooses a chunk size from the cost of the work and the lifetimes of machines; `check` tries a program out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridml.cli.arguments import INTERRUPTED, Json, RunArgument, echo, print_result, takes_options, typer_command
from gridml.errors import UsageError
from gridml.model.device_memory import AUTO, CPU
from master.planning.options import PlanOptions
from master.state.options import in_panels
from master.store.rundir import claim_root, default_root

if TYPE_CHECKING:
    from master.ports.plugin import BackendPlugin, BatchSystem
    from master.store.settings import Settings


def start_command(plugin: BackendPlugin) -> Callable[..., None]:
    """Return the start command of a back end, with the signature that its options define."""
    from gridml.api.run_calls import options_of

    def start(
        program: Annotated[
            Path, typer.Argument(metavar="PROGRAM", help="Python file with the gridml.Program.", show_default=False)
        ],
        **values: Any,
    ) -> None:
        try:
            _start(plugin, program, values)
        except KeyboardInterrupt:  # before the run's loop; during the loop, `terminal.drive` handles signals
            echo("Stopped before the run began.", err=True)
            raise typer.Exit(INTERRUPTED) from None

    assert plugin.command is not None
    return typer_command(start, in_panels(options_of(plugin)), plugin.command.help)


def _start(plugin: BackendPlugin, program: Path, values: dict[str, Any]) -> None:
    from gridml.api.run_calls import run_settings
    from master.launch import start
    from master.store.rundir import RunDirectory
    from master.views.terminal import drive

    settings = run_settings(plugin, program, values)  # checks all options before a directory is created
    name, as_json = settings.program.stem, values["as_json"]
    # A back end without a batch system lacks these two options: its masters always run in the foreground.
    foreground, prepare = values.get("foreground", True), values.get("prepare", False)
    if foreground and prepare:
        raise UsageError("got --foreground and --prepare; expected only one: a prepared run is submitted later.")
    if values.get("dry_run", False):  # before `claim_root`: a dry run creates no directory
        root = values["run_dir"] or default_root(name)
        typer.echo(plugin.describe(settings, RunDirectory(root), foreground=foreground))
        return
    with claim_root(values["run_dir"], name) as root:
        # Checked first, because creating the run includes the placement of its graph, which can take minutes.
        if plugin.batch is not None and not prepare:
            plugin.batch.check_reachable()
        if plugin.batch is not None and not foreground:
            _submit_master(plugin.batch, settings, root, prepare=prepare, as_json=as_json)
            return
        drive(root, lambda environment: start(settings, root, environment), name, as_json=as_json)


def _submit_master(batch: BatchSystem, settings: Settings, root: Path, *, prepare: bool, as_json: bool) -> None:
    """Create the run and submit its master to the batch system; with `prepare`, only write the submit file."""
    from gridml.api.run_calls import create_run
    from master.store.rundir import command

    directory = create_run(settings, root, quiet=as_json)
    if prepare:
        prepared = batch.prepare_master(settings, directory)
        done: dict[str, Any] = {"prepared": str(prepared)}
        text = f"{root} is prepared; nothing was submitted. Submit its master with: {batch.submission(prepared)}"
    else:
        job = batch.submit_master(settings, directory)
        done = {"master_job": job}
        text = (
            f"The master of {root} is job {job}. Follow it with: {command('watch', root)}\n"
            f"Stop it, keeping what is credited, with: {command('cancel', root)} (or {batch.removal(job)})"
        )
    typer.echo(json.dumps({"run_dir": str(root), **done}) if as_json else text)


def resume(run: RunArgument, **values: Any) -> None:
    """Continue a run from its last credit, however it ended.

    Options given here apply from now on. Jobs that are already queued or running are not changed.

    Example: gridml resume runs/mnist-20260401-120000
    """
    from gridml.api.run_calls import resume_function
    from master.views.terminal import drive

    drive(run, resume_function(run, values), run.name, as_json=values["as_json"], resumed=True)


def simulate(
    program: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROGRAM]",
            help="Program to really train. Without it, workers only let simulated time pass.",
            show_default=False,
        ),
    ] = None,
    **values: Any,
) -> None:
    """Simulate a run: the real master, on simulated machines and a virtual clock.

    The ledger and all decisions are those of a real run. Time, machines and messages are simulated, and the report is
    in simulated seconds. Times are in seconds, or have a unit: 90s, 45m, 1.5h.

    Example: gridml simulate --cost t_x=0.05,t_s=30,push=0.5 --vertices 1000000 --lifetime 'exponential(45m)'
    --travel 0.5s
    """
    from gridml.api.simulating import make_world, play_run
    from master.simulation.campaign import status_line
    from master.simulation.result import result_of
    from master.views.terminal import print_report

    as_json = values["as_json"]
    if values["campaign"] is not None:  # the runs of a campaign are temporary: there is no directory to claim
        _campaign(values["campaign"], values["seed"], as_json=as_json)
        return
    with claim_root(values["run_dir"], "cost" if program is None else program.stem) as root:
        with status_line(root, quiet=as_json) as notify:
            world = make_world(program, values, root)
            play_run(world, root, notify)
        result = result_of(world, root)
    print_result(result.to_json(), partial(print_report, result.report), result.summary(), as_json=as_json)


def _campaign(kills: int, seed: int, *, as_json: bool) -> None:
    """Simulate runs until `kills` workers were killed. Raises LedgerError, which names the seed, if a ledger is
    wrong."""
    from master.simulation.campaign import Played, campaign
    from master.views.console import PlainConsole

    with PlainConsole(stderr=True).status("playing") as status:

        def notify(played: Played) -> None:
            status.update(f"{played.kills:,} of {kills:,} kills, {played.runs:,} runs, all exact")

        sums = campaign(kills, seed, report=notify)
    text = (
        f"{sums.kills:,} kills in {sums.runs:,} runs (seeds {seed} to {seed + sums.runs - 1}), {sums.masters:,} "
        f"masters, {sums.sent:,} messages and answers, {sums.lost:,} of them lost, {sums.hostile:,} hostile "
        "values: every vertex was credited once."
    )
    print_result({"seed": seed, **asdict(sums)}, text, as_json=as_json)


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
