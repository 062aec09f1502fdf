"""`gridml simulate`: a run on machines that are only imagined, by the real master, under a clock that jumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridml.errors import StorageError, UsageError
from gridml.run_names import claimed_root

if TYPE_CHECKING:
    from master.simulation.options import SimulationOptions
    from master.simulation.world import World
    from master.store.journal import Report
    from master.store.rundir import RunDirectory

EXAMPLE = (
    "Example: gridml simulate --cost t_x=0.05,t_s=30,push=0.5 --vertices 1000000 --lifetime 'exponential(45m)' "
    "--travel 0.5s"
)
COST_PROGRAM = "cost.py"  # in the run directory, where every run keeps its program
_WORK, _MACHINES, _WRONG = "The work", "The machines", "What goes wrong"


def _work(text: str) -> typer.models.OptionInfo:
    return typer.Option(help=text, rich_help_panel=_WORK, show_default=False)  # type: ignore[no-any-return]


def _machines(text: str, *, default: bool = True) -> typer.models.OptionInfo:
    return typer.Option(help=text, rich_help_panel=_MACHINES, show_default=default)  # type: ignore[no-any-return]


def _wrong(text: str, *, default: bool = False) -> typer.models.OptionInfo:
    return typer.Option(help=text, rich_help_panel=_WRONG, show_default=default)  # type: ignore[no-any-return]


def simulate(
    program: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROGRAM]",
            help="Really train this program; without it workers only take time.",
            show_default=False,
        ),
    ] = None,
    cost: Annotated[
        str,
        typer.Option(
            metavar="t_x=S,...",
            help="Seconds: t_x trains a vertex; t_c copies one; t_s, t_e start and end a chunk; push; boot; wait.",
            rich_help_panel=_WORK,
        ),
    ] = "t_x=0.01,t_s=5,push=0.1",
    vertices: Annotated[int | None, _work("Vertices of an epoch, without a program; otherwise 100,000.")] = None,
    epochs: Annotated[int | None, _work("Passes over them; otherwise the program's, or 1.")] = None,
    chunk: Annotated[
        str | None,
        typer.Option(
            metavar="N|RULE",
            help="Vertices of a chunk; otherwise chosen for goodput, or as the paper has it: paper, gaussian.",
            rich_help_panel=_WORK,
            show_default=False,
        ),
    ] = None,
    push_every: Annotated[int | None, _work("Vertices between two pushes; otherwise as the run sees fit.")] = None,
    compress: Annotated[str, _work("What pushes carry: none, int8 or int4, as in a run.")] = "none",
    compress_down: Annotated[str, _work("What answers bring weights in: none or bf16, as in a run.")] = "none",
    init_from: Annotated[str | None, _work("Begin with another run's replica, or a file, as in a run.")] = None,
    init_partial: Annotated[
        bool, typer.Option("--init-partial", help="Of these take what fits.", rich_help_panel=_WORK)
    ] = False,
    no_push: Annotated[
        bool, typer.Option("--no-push", help="Push at a chunk's end only.", rich_help_panel=_WORK)
    ] = False,
    chunks_per_job: Annotated[int, _work("A worker leaves after so many chunks; otherwise never.")] = 0,
    workers: Annotated[int, _machines("Machines at once.")] = 100,
    steps_each: Annotated[
        int | None,
        _machines("Batches each should train, or fewer workers are asked for; otherwise 150; 0: all.", default=False),
    ] = None,
    lifetime: Annotated[
        str | None,
        _machines("How long machines live: normal(45m,10m), weibull(0.7,2h); otherwise for ever.", default=False),
    ] = None,
    trace: Annotated[Path | None, _machines("Machines that came and went (Bamboo's format).", default=False)] = None,
    fast: Annotated[float, _machines("Share of the machines that are faster, those with AVX say.")] = 0.0,
    fast_factor: Annotated[float, _machines("How many times as fast they are.")] = 4.0,
    spread: Annotated[float, _machines("Standard deviation of the logarithm of all speeds.")] = 0.0,
    late: Annotated[int, _machines("Machines that come later, within half a mean life.")] = 0,
    grace_share: Annotated[float, _wrong("Share of the evictions that come with a warning.", default=True)] = 0.5,
    storm_every: Annotated[str | None, _wrong("Take many machines at one instant, so often on average: 20m.")] = None,
    storm_share: Annotated[float, _wrong("Share of the machines that a storm takes.", default=True)] = 0.3,
    faults: Annotated[
        str | None,
        _wrong("What happens to messages: chances lose, repeat, tear, flip, and the longest delay in seconds."),
    ] = None,
    travel: Annotated[
        str, _wrong("How long a message takes to the master, and an answer back: 0.5s.", default=True)
    ] = "0",
    crash_every: Annotated[str | None, _wrong("Kill the master so often on average: 30m.")] = None,
    silence: Annotated[str, _wrong("Silence after which a worker's leases go to others.", default=True)] = "120s",
    spot_checks: Annotated[float, _wrong("Share of the pushes that other workers train again.", default=True)] = 0.0,
    turn: Annotated[str, _wrong("How often the master looks for messages, in seconds.", default=True)] = "0.05",
    campaign: Annotated[
        int | None,
        _wrong(
            "Instead of one run, play drawn ones with every fault until so many workers were killed; all are checked."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run, byte for byte.")] = 0,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run is kept; otherwise runs/PROGRAM-TIME.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")] = False,
) -> None:
    """Play a run on machines that are only imagined.

    Ledger and decisions are those of a real run; time, machines and messages are simulated, and the report is in
    simulated seconds. Times have units as elsewhere: 90s, 45m, 1.5h.
    """
    from master.simulation.options import SimulationOptions
    from master.simulation.result import result_of
    from master.simulation.status_line import status_line
    from master.views.json_text import json_text
    from master.views.terminal import print_report

    if campaign is not None:
        _campaign(campaign, seed, as_json=as_json)
        return
    options = SimulationOptions(
        cost=cost,
        workers=workers,
        vertices=vertices,
        epochs=epochs,
        lifetime=lifetime,
        trace=trace,
        seed=seed,
        chunk=chunk,
        push_every=push_every,
        compress=compress,
        compress_down=compress_down,
        init_from=init_from,
        init_partial=init_partial,
        no_push=no_push,
        grace_share=grace_share,
        late=late,
        fast=fast,
        fast_factor=fast_factor,
        spread=spread,
        storm_every=storm_every,
        storm_share=storm_share,
        faults=faults,
        crash_every=crash_every,
        chunks_per_job=chunks_per_job,
        turn=turn,
        travel=travel,
        silence=silence,
        spot_checks=spot_checks,
        steps_each=steps_each,
    )
    name = "cost" if program is None else program.stem
    with claimed_root(run_dir, name) as root:
        with status_line(root, quiet=as_json) as notify:
            world = world_for(program, options, root)
            played(world, root, notify)
        result = result_of(world, root)
    if as_json:
        typer.echo(json_text(result.to_json(), indent=2))
    else:
        print_report(result.report)
        typer.echo(result.summary())


def world_for(program: Path | None, options: SimulationOptions, root: Path) -> World:
    """Make the world of a run in `root`, of a program's file or of workers that only take time. Raises UsageError for
    options that make no sense."""
    from master.simulation.options import check_batch, scenario_for, settings_for
    from master.simulation.world import World
    from master.store.rundir import RunDirectory
    from remote.stepped import Trainer

    if program is not None and options.vertices is not None:
        raise UsageError("got both a program and --vertices; expected one of them: a program has its own vertices.")
    directory = RunDirectory(root)
    file = directory.kept_program(Path(COST_PROGRAM)).program.absolute() if program is None else program.absolute()
    settings = settings_for(options, file)
    scenario = scenario_for(options, settings.workers)
    if program is None:
        _write(directory, file, 100_000 if options.vertices is None else options.vertices, options.epochs or 1)
    trainer = None if program is None else Trainer(file, scenario.costs, options.seed)
    if trainer is not None:
        check_batch(options, trainer.batch)
    return World(settings, scenario, trainer)


def played(world: World, root: Path, report: Report) -> None:
    """Play a run in `root` to its end; `report` is told of its events. Raises UsageError for one that is too large, and
    as a run does."""
    from master.simulation.world import play

    try:
        play(world, root, report)
    except MemoryError:
        raise UsageError("this simulation does not fit into memory; expected fewer --vertices or --workers.") from None


def _write(directory: RunDirectory, file: Path, vertices: int, epochs: int) -> None:
    """Make the run directory with the program of which only the costs matter. Raises UsageError, StorageError."""
    from master.simulation import cost_program

    directory.create()
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("x") as new:
            new.write(cost_program.source(vertices, epochs))
    except FileExistsError:
        raise UsageError(f"{file} is there already, and no run is; name another --run-dir.") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error}. Make room, or name another --run-dir.") from error


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
