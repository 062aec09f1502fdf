"""The command line: wires programs, master, back ends and views together. Nothing imports this module.

Commands with many options of their own have a file in `gridml/commands`.

What a command needs is imported inside it, so that `gridml --help` answers at once.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridml.commands import plan, simulate
from gridml.errors import GridmlError, UsageError, UserCodeError

if TYPE_CHECKING:
    from master.store.rundir import RunDirectory
    from master.store.settings import Settings

app = typer.Typer(
    help="Train models on machines that come and go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]


def main(argv: Sequence[str] | None = None) -> None:
    """The console script `gridml`. Ends the process; an error meant for a person is one message on stderr."""
    try:
        app(args=None if argv is None else list(argv), prog_name="gridml")
    except GridmlError as error:
        if isinstance(error, UserCodeError) and error.traceback_text:
            typer.echo(error.traceback_text, err=True)
        typer.echo(f"{typer.style('Error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(error.exit_status)


@app.command(epilog='Example: gridml run examples/mnist.py --workers 4 --lifetime "normal(45m,10m)" --speedup 300')
def run(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="The Python file with the gridml.Program.", show_default=False)
    ],
    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes at once; 2, or with --trace what the trace has.", show_default=False),
    ] = None,
    lifetime: Annotated[
        str | None, typer.Option(help="How long workers live before they are killed: normal(45m,10m), exponential(1h).")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A file of lines milliseconds,add|remove,node: when machines come and go.")
    ] = None,
    speedup: Annotated[float, typer.Option(help="Let the times of --lifetime or --trace pass so much faster.")] = 1.0,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the vertices; otherwise what the program says.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the order of vertices, first values and who is killed when.")] = 0,
    chunk: Annotated[int | None, typer.Option(help="Vertices a lease; otherwise chosen.", show_default=False)] = None,
    push_every: Annotated[
        int | None, typer.Option(help="Vertices between two pushes of a worker; otherwise chosen.", show_default=False)
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run is kept; otherwise runs/PROGRAM-TIME.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a program on workers of this machine, and show how it goes."""
    from master.backends import registry as choose
    from master.launch import start
    from master.store.settings import Settings
    from master.views.terminal import drive

    if workers is None:
        workers = 2 if trace is None else choose.most_at_once(choose.read_trace(trace))
    settings = Settings(
        program=program.absolute(),
        workers=workers,
        epochs=epochs,
        seed=seed,
        lifetime=lifetime,
        trace=None if trace is None else trace.absolute(),
        speedup=speedup,
        chunk=chunk,
        push_every=push_every,
    )
    choose.script(settings)  # what is wrong with it is said before a directory is made
    root = run_dir or Path("runs") / f"{program.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    drive(root, lambda environment: start(settings, root, environment), program.stem, as_json=as_json)


@app.command(epilog="Example: gridml submit examples/mnist.py --workers 20 --request-memory 2GB --foreground")
def submit(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="The Python file with the gridml.Program.", show_default=False)
    ],
    workers: Annotated[int, typer.Option(help="Jobs at once, waiting or running.")] = 10,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the vertices; otherwise what the program says.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the order of vertices and first values.")] = 0,
    chunk: Annotated[int | None, typer.Option(help="Vertices a lease; otherwise chosen.", show_default=False)] = None,
    push_every: Annotated[
        int | None, typer.Option(help="Vertices between two pushes of a worker; otherwise chosen.", show_default=False)
    ] = None,
    requirements: Annotated[
        str | None, typer.Option(help="What a machine must be: 'HasAVX2 && OpSysMajorVer >= 8'.", show_default=False)
    ] = None,
    rank: Annotated[str | None, typer.Option(help="Which machines are better than others.", show_default=False)] = None,
    request_cpus: Annotated[int, typer.Option(help="Cores of a job, and threads of a worker.")] = 1,
    request_memory: Annotated[str, typer.Option(help="Memory of a job.")] = "2GB",
    request_disk: Annotated[str, typer.Option(help="Disk of a job.")] = "2GB",
    request_gpus: Annotated[int, typer.Option(help="GPUs of a job.")] = 0,
    container_image: Annotated[
        str | None, typer.Option(help="An image that holds Python and what the program imports.", show_default=False)
    ] = None,
    packed: Annotated[
        Path | None, typer.Option(help="An environment from conda-pack or venv-pack, sent along.", show_default=False)
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The Python at the far end; otherwise this one or python3.", show_default=False)
    ] = None,
    send: Annotated[
        list[Path] | None, typer.Option(help="A file the program needs; give it again for more.", show_default=False)
    ] = None,
    project: Annotated[str | None, typer.Option(help="The project name, on the OSPool.", show_default=False)] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="A further job attribute, NAME=EXPRESSION.", show_default=False)
    ] = None,
    batch_name: Annotated[str | None, typer.Option(help="How condor_q names the jobs.", show_default=False)] = None,
    silence: Annotated[
        float, typer.Option(help="Seconds without a sign of life after which a worker's leases go to others.")
    ] = 120.0,
    max_idle: Annotated[int, typer.Option(help="Jobs that wait in the queue, at most.")] = 10,
    chunks_per_job: Annotated[
        int, typer.Option(help="A job leaves after so many chunks; 0: it stays while its machine lasts.")
    ] = 0,
    carrier: Annotated[
        str, typer.Option(help="How messages travel: chirp, or sftp where machines may connect to this one.")
    ] = "chirp",
    sftp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where workers reach this machine; otherwise its full name and any free port.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        int, typer.Option(metavar="SECONDS", help="Time a job asks for to push and leave when its machine is taken.")
    ] = 30,
    job_lease: Annotated[
        int, typer.Option(metavar="SECONDS", help="How long HTCondor looks for a job that is out of reach.")
    ] = 300,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run is kept; otherwise runs/PROGRAM-TIME.", show_default=False)
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the master in this terminal, not as a job of its own.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the submit descriptions and what would be sent; submit nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a program on the jobs of an HTCondor pool.

    The master becomes a job of the local universe: it goes on when you log out, and is started again after a crash.
    """
    from master.backends.condor import master_job as condor_master
    from master.backends.condor import submit_description as condor_submit
    from master.environment import Environment
    from master.launch import create, start
    from master.store.rundir import RunDirectory, command
    from master.store.settings import CondorOptions, Settings
    from master.views.terminal import drive

    options = CondorOptions(
        requirements=requirements,
        rank=rank,
        request_cpus=request_cpus,
        request_memory=request_memory,
        request_disk=request_disk,
        request_gpus=request_gpus,
        # The submit description is read in the run directory.
        container_image=str(Path(container_image).absolute())
        if container_image and Path(container_image).exists()
        else container_image,
        python=python,
        packed=None if packed is None else packed.absolute(),
        project=project,
        attributes=tuple(attribute or ()),
        send=tuple(path.absolute() for path in send or ()),
        batch_name=batch_name,
        max_idle=max_idle,
        chunks_per_job=chunks_per_job,
        grace_s=grace,
        job_lease_s=job_lease,
        carrier=carrier,
        sftp=sftp,
    )
    settings = Settings(
        program=program.absolute(),
        backend="condor",
        workers=workers,
        epochs=epochs,
        seed=seed,
        chunk=chunk,
        push_every=push_every,
        silent_s=silence,
        condor=options,
    )
    root = run_dir or Path("runs") / f"{program.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    condor_submit.check(options, settings.program)
    if dry_run:
        _print_jobs(settings, RunDirectory(root), foreground=foreground)
        return
    condor_master.check_reachable()
    if foreground:
        drive(root, lambda environment: start(settings, root, environment), program.stem, as_json=as_json)
        return
    from master.backends.registry import make

    create(settings, root, Environment(make))
    directory = RunDirectory(root)
    job = condor_master.submit(directory, condor_master.description(settings, directory))
    if as_json:
        typer.echo(json.dumps({"run_dir": str(root), "master_job": job}))
        return
    typer.echo(f"The master of {root} is job {job}. Follow it: {command('watch', root)}")
    typer.echo(f"End it, keeping what is credited: {command('cancel', root)} (or condor_rm {job})")


@app.command(epilog="Example: gridml resume runs/mnist-20260401-120000")
def resume(
    run: RunArgument,
    program: Annotated[
        Path | None, typer.Option(help="Another file of the same graph, such as a mended one.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Go on with a run from its last credit, whatever ended it."""
    from master.launch import resume
    from master.views.terminal import drive

    file = None if program is None else program.absolute()
    drive(run, lambda environment: resume(run, environment, file), run.name, as_json=as_json)


@app.command(epilog="Example: gridml status runs/mnist-20260401-120000")
def status(run: RunArgument, as_json: Json = False) -> None:
    """Say in a few lines how far a run is."""
    import dataclasses

    from master.backends.condor.master_job import waiting
    from master.store.reader import STOPPED, SUBMITTED, connect, explained, holder
    from master.store.run_facts import read_clock
    from master.store.rundir import RunDirectory, command
    from master.views.live import line
    from master.views.progress import at_rest, read_progress

    connection, master = connect(run), holder(run)
    try:
        with explained(RunDirectory(run).ledger):
            if master is None:
                found = at_rest(read_progress(connection, read_clock(connection, run).end_s))
            else:
                found = read_progress(connection, time.time())
            because = connection.execute("SELECT value FROM run WHERE key = 'stopped_because'").fetchone()
    finally:
        connection.close()
    reason = json.loads(because[0]) if because and found.status in ("failed", "cancelled") else None
    job = waiting(RunDirectory(run)) if master is None and found.status != "finished" else None
    if as_json:
        told = {"run_dir": str(run), **found.to_json(), "stopped_because": reason, "master": master}
        told["master_job"] = None if job is None else dataclasses.asdict(job)
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{run}: {found.status}")
    typer.echo(line(found))
    if reason:
        typer.echo(reason)
    if job is not None:
        typer.echo(f"Its master is {job}")
    elif found.status in (STOPPED, SUBMITTED):
        typer.echo(f"No master drives it. Go on from its last credit with: {command('resume', run)}")


@app.command(epilog="Example: gridml watch runs/mnist-20260401-120000")
def watch(run: RunArgument, as_json: Json = False) -> None:
    """Follow a run that another process drives, until it ends. Ctrl-C leaves the run alone."""
    from master.views.terminal import follow

    follow(run, as_json=as_json)
    status(run, as_json=as_json)


@app.command(epilog="Example: gridml report runs/mnist-20260401-120000 --plot mnist.png")
def report(
    run: RunArgument,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the run into a .png, .pdf or .svg.", show_default=False)
    ] = None,
) -> None:
    """What a run did, how fast, and what was lost; also while it goes on."""
    from master.views.report import report
    from master.views.terminal import print_report

    found = report(run)
    if plot is not None:
        from master.views.plot import plot_report

        plot_report(found, run, plot)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_report(found)


@app.command(epilog="Example: gridml cancel runs/mnist-20260401-120000")
def cancel(run: RunArgument) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from gridml.errors import LedgerError, RunError
    from master.backends.condor import master_job as condor_master
    from master.store.reader import holder
    from master.store.rundir import RunDirectory, command

    directory, then = RunDirectory(run), command("resume", run)
    if not directory.ledger.is_file():
        raise LedgerError(f"{run} is not a run: it has no ledger. Name the directory that gridml run made.")
    try:
        if (master := holder(run)) is not None:
            (run / "cancel").touch()
            typer.echo(f"Asked the master ({master}) to stop. Go on later with: {then}")
            return
        withdrawn = condor_master.withdraw(directory)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    if withdrawn is None:
        gone = ", and its job is no longer in the queue" if (run / condor_master.JOB).exists() else ""
        look = f"{command('status', run)} says how it stands."
        raise RunError(f"no master drives {run}{gone}: there is nothing to cancel. {look}")
    typer.echo(f"No master drove it. Out of the queue: {withdrawn}. Go on later with: {then}")


app.command(epilog=plan.EXAMPLE)(plan.plan)
app.command(epilog=simulate.EXAMPLE)(simulate.simulate)


def _print_jobs(settings: Settings, directory: RunDirectory, *, foreground: bool) -> None:
    """The submit descriptions of a run, and what would travel with each of its jobs."""
    from gridml.model.program import load
    from master.backends.condor import master_job as condor_master
    from master.backends.condor import submit_description as condor_submit

    load(settings.program).build(settings.program)  # what is wrong with it is said now
    commands = condor_submit.description(settings, directory, {})
    if not foreground:
        master = condor_master.description(settings, directory)
        typer.echo(condor_submit.as_text(master, condor_master.DESCRIPTION, ""))
    typer.echo(condor_submit.as_text(commands))
    with tempfile.TemporaryDirectory(prefix="gridml-") as folder:
        code = Path(folder) / condor_submit.CODE
        condor_submit.write_code(code)
        typer.echo(f"# sent with every job: {condor_submit.CODE} ({code.stat().st_size:,} bytes)")
    for path in commands["transfer_input_files"].split(", ")[1:]:
        size = f"{Path(path).stat().st_size:,} bytes" if Path(path).is_file() else "not there"
        size = "the job's own key, made with it" if path == condor_submit.KEY else size
        typer.echo(f"# sent with every job: {path} ({size})")
