"""The command line: wires programs, master, back ends and views together. Nothing imports this module.

What a command needs is imported inside it, so that `gridml --help` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridml.errors import GridmlError, UsageError, UserCodeError

if TYPE_CHECKING:
    import sqlite3

    from master.live import View
    from master.run import Outside, Run
    from master.rundir import RunDirectory
    from master.settings import Settings

app = typer.Typer(
    help="Train models on machines that come and go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
LOOK_S = 0.25  # how often `watch` looks for news
RESTART_S = (60.0, 600.0)  # how long it waits for the schedd to start a master: again, and for the first time

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
    from master.backends import choose
    from master.run import start
    from master.settings import Settings

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
    _drive(root, lambda outside: start(settings, root, outside), program.stem, as_json=as_json)


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
    from master.backends import condor_master, condor_submit
    from master.run import Outside, create, start
    from master.rundir import RunDirectory
    from master.settings import CondorOptions, Settings

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
        _drive(root, lambda outside: start(settings, root, outside), program.stem, as_json=as_json)
        return
    from master.backends.choose import make

    create(settings, root, Outside(make))
    directory = RunDirectory(root)
    job = condor_master.submit(directory, condor_master.description(settings, directory))
    if as_json:
        typer.echo(json.dumps({"run_dir": str(root), "master_job": job}))
        return
    typer.echo(f"The master of {root} is job {job}. Follow it: gridml watch {root}")
    typer.echo(f"End it, keeping what is credited: gridml cancel {root} (or condor_rm {job})")


@app.command(epilog="Example: gridml resume runs/mnist-20260401-120000")
def resume(
    run: RunArgument,
    program: Annotated[
        Path | None, typer.Option(help="Another file of the same graph, such as a mended one.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Go on with a run from its last credit, whatever ended it."""
    from master.run import resume

    file = None if program is None else program.absolute()
    _drive(run, lambda outside: resume(run, outside, file), run.name, as_json=as_json)


@app.command(epilog="Example: gridml status runs/mnist-20260401-120000")
def status(run: RunArgument, as_json: Json = False) -> None:
    """Say in a few lines how far a run is."""
    import dataclasses

    from master.live import line
    from master.progress import at_rest, read
    from master.reading import connect, explained, holder
    from master.report import read_clock
    from master.rundir import RunDirectory

    connection, master = connect(run), holder(run)
    try:
        with explained(RunDirectory(run).ledger):
            if master is None:
                found = at_rest(read(connection, read_clock(connection, run).end_s))
            else:
                found = read(connection, time.time())
            because = connection.execute("SELECT value FROM run WHERE key = 'stopped_because'").fetchone()
    finally:
        connection.close()
    reason = json.loads(because[0]) if because and found.status in ("failed", "cancelled") else None
    if as_json:
        told = {"run_dir": str(run), **dataclasses.asdict(found), "stopped_because": reason, "master": master}
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{run}: {found.status}")
    typer.echo(line(found))
    if reason:
        typer.echo(reason)
    elif found.status == "stopped":
        typer.echo(f"No master drives it. Go on from its last credit with: gridml resume {run}")


@app.command(epilog="Example: gridml watch runs/mnist-20260401-120000")
def watch(run: RunArgument, as_json: Json = False) -> None:
    """Follow a run that another process drives, until it ends. Ctrl-C leaves the run alone."""
    from master.live import Follower
    from master.reading import connect, holder

    connection = connect(run)
    try:
        with _view(run.name, as_json=as_json) as view:
            newest = connection.execute("SELECT coalesce(max(rowid), 0) FROM events").fetchone()[0]
            seen = max(0, newest - 10)
            driven, held, seen_s = True, False, time.monotonic()
            with Follower(run, view) as follower:
                while driven:
                    # Asked first, so that the last events are shown too.
                    before, held = held, holder(run) is not None
                    if not (held and before):
                        # What is opened while nobody writes is taken for unchanging, and must be opened again.
                        connection.close()
                        connection = connect(run)
                    seen_s = time.monotonic() if held else seen_s
                    driven = held or time.monotonic() - seen_s < _patience_s(run, connection)
                    query = "SELECT rowid, at_s, kind, text FROM events WHERE rowid > ? ORDER BY rowid"
                    for row, at_s, kind, text in connection.execute(query, (seen,)).fetchall():
                        view.event(at_s, kind, text)
                        seen = row
                    if held:
                        follower.tick()
                    if driven:
                        time.sleep(LOOK_S)
    except KeyboardInterrupt:
        typer.echo(f"The run goes on. Look again with: gridml watch {run}", err=True)
        raise typer.Exit(130) from None
    finally:
        connection.close()
    status(run, as_json=as_json)


def _patience_s(run: Path, connection: sqlite3.Connection) -> float:
    """How long to wait for a master where none is: one that is a job will be started, again, by the schedd."""
    from master.backends.condor_master import DESCRIPTION
    from master.run import SUBMITTED

    status = json.loads(connection.execute("SELECT value FROM run WHERE key = 'status'").fetchone()[0])
    if not (run / DESCRIPTION).exists() or status not in (SUBMITTED, "running"):
        return 0.0
    return RESTART_S[status == SUBMITTED]


@app.command(epilog="Example: gridml report runs/mnist-20260401-120000 --plot mnist.png")
def report(
    run: RunArgument,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the run into a .png, .pdf or .svg.", show_default=False)
    ] = None,
) -> None:
    """What a run did, how fast, and what was lost; also while it goes on."""
    from master.report import report

    found = report(run)
    if plot is not None:
        from master.plot import plot as draw

        draw(found, run, plot)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print_report(found)


@app.command(epilog="Example: gridml cancel runs/mnist-20260401-120000")
def cancel(run: RunArgument) -> None:
    """Ask the master of a run to stop; the run keeps its credits and can be resumed."""
    from gridml.errors import LedgerError, RunError
    from master.reading import holder
    from master.rundir import RunDirectory

    if not RunDirectory(run).ledger.is_file():
        raise LedgerError(f"{run} is not a run: it has no ledger. Name the directory that gridml run made.")
    master = holder(run)
    if master is None:
        raise RunError(f"no master drives {run}: there is nothing to cancel. gridml status {run} says how it stands.")
    try:
        (run / "cancel").touch()
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    typer.echo(f"Asked the master ({master}) to stop. Go on later with: gridml resume {run}")


def _print_jobs(settings: Settings, directory: RunDirectory, *, foreground: bool) -> None:
    """The submit descriptions of a run, and what would travel with each of its jobs."""
    from gridml.program import load
    from master.backends import condor_master, condor_submit

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
        typer.echo(f"# sent with every job: {path} ({size})")


class Stopped(BaseException):
    """Somebody asked this process to end with signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Signals:
    """Ctrl-C, SIGTERM and a terminal that closes: while the run's loop turns, they end it between two turns; at any
    other time, or when they come again, at once."""

    def __init__(self) -> None:
        self._turning = False
        self._asked = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._hear) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def turn(self) -> None:
        """Called once a turn of the loop. Raises Stopped."""
        self._turning = True
        if self._asked:
            raise Stopped(self._asked)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._turning and not self._asked:
            self._asked = number
        else:
            raise Stopped(number)


def _drive(root: Path, begin: Callable[[Outside], Run], title: str, *, as_json: bool) -> None:
    """Begin or resume a run and drive it to its end; then print its report."""
    from master.backends.choose import make
    from master.live import Follower
    from master.report import report
    from master.run import Outside
    from master.rundir import RunDirectory

    signals = _Signals()
    try:
        with signals.caught(), _view(title, as_json=as_json) as view:
            follower = Follower(root, view)

            def tick() -> None:
                signals.turn()
                follower.tick()

            with begin(Outside(make, told=follower.told, tick=tick)) as found, follower:
                follower.told("started", f"{root}: {found.settings.workers} workers, {found.grants.total:,} vertices")
                found.finish()
    except Stopped as stopped:
        began = RunDirectory(root).ledger.exists()
        then = f"Stopped at the last credit. Go on with: gridml resume {root}" if began else "Stopped before it began."
        typer.echo(then, err=True)
        raise typer.Exit(128 + stopped.number) from None
    if as_json:
        typer.echo(json.dumps({"at_s": time.time(), "kind": "report", "report": report(root).to_json()}))
    else:
        _print_report(report(root))


def _view(title: str, *, as_json: bool) -> View:
    from rich.console import Console

    from master.live import JsonLines, Lines, Screen

    if as_json:
        return JsonLines(sys.stdout)
    return Screen(Console(), title) if sys.stdout.isatty() else Lines(sys.stdout)


def _print_report(found: Any) -> None:
    from rich.console import Console

    from master.render import render

    # A file or a pipe gets the tables as wide as they are.
    Console(width=None if sys.stdout.isatty() else 132).print(render(found))
