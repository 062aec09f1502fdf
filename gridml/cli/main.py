"""Entry point of the command line: registers all commands. No module of gridml imports it.

Each command has a file in `gridml/cli`. The commands that start a run are built from the registered back ends. Commands
import what they need inside their functions, so that `--help` and small commands start fast.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from gridml.cli import ami, manage, place, prepare, show, start
from gridml.cli.arguments import INTERRUPTED, JSON, echo, tolerate_closed_pipe
from gridml.errors import DataError, GridmlError, UsageError, UserCodeError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `gridml` and exit the process.

    A GridmlError is printed as one message on stderr. With `--json`, the last line of stdout is also an object with
    `error` and `exit_status`.
    """
    arguments = sys.argv[1:] if argv is None else [*argv]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be valid text
    # Streams that a test has replaced stay as they are.
    if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:
        sys.stdout, sys.stderr = tolerate_closed_pipe(sys.stdout), tolerate_closed_pipe(sys.stderr)
    try:
        commands = command_line()
    except KeyboardInterrupt:
        echo("Stopped before the command began.", err=True)
        sys.exit(INTERRUPTED)
    try:
        ended = commands(args=arguments, prog_name="gridml", standalone_mode=JSON not in arguments)
    except GridmlError as error:
        _fail(error, as_json=JSON in arguments)
    except Exception as error:
        # Only usage errors of typer's parser have this method; anything else is a bug and keeps its traceback.
        if not hasattr(error, "format_message"):
            raise
        _fail(UsageError(f"{error.format_message()} See gridml --help."), as_json=True)
    else:
        sys.exit(ended if isinstance(ended, int) else 0)


def _fail(error: GridmlError, *, as_json: bool) -> None:
    """Print the error and exit with its status."""
    traceback = error.traceback_text if isinstance(error, UserCodeError | DataError) else ""
    if traceback:
        echo(traceback, err=True)
    typer.echo(typer.style("Error: ", fg="red", bold=True), err=True, nl=False)
    echo(str(error), err=True)
    if as_json:
        failure = {"error": str(error), "exit_status": error.exit_status}
        typer.echo(json.dumps({**failure, "traceback": traceback} if traceback else failure))
    sys.exit(error.exit_status)


def _version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        version = metadata.version("gridml")
        typer.echo(json.dumps({"gridml": version}) if context.params["as_json"] else f"gridml {version}")
        raise typer.Exit


def _options(
    as_json: Annotated[bool, typer.Option(JSON, hidden=True, is_eager=True)] = False,  # eager: _version reads it
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version)] = False,
) -> None:
    """Options before the command name."""
    if as_json:
        raise UsageError(f"got {JSON} before the command; expected it after, as in gridml status RUN {JSON}.")


def command_line() -> typer.Typer:
    """Return the application with all its commands."""
    from gridml.cli.start import start_command
    from master.backends.registry import BACKENDS

    app = typer.Typer(
        help="Train models on machines that come and go.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        callback=_options,
    )
    for plugin in BACKENDS.all().values():
        if plugin.command is not None:
            epilog = f"Example: {plugin.command.example}"
            app.command(plugin.command.verb, epilog=epilog)(start_command(plugin))
        if upkeep := plugin.upkeep():
            more = typer.Typer(help=f"Manage what gridml has on the {plugin.name} back end.", no_args_is_help=True)
            for name, each in upkeep.items():
                more.command(name, epilog=f"Example: {each.example}")(each.call)
            app.add_typer(more, name=plugin.name)
    app.command(epilog=prepare.CHECK_EXAMPLE)(prepare.check)
    app.command("resume", epilog=start.RESUME_EXAMPLE)(start.resume_command())
    app.command(epilog=show.STATUS_EXAMPLE)(show.status)
    app.command(epilog=show.WATCH_EXAMPLE)(show.watch)
    app.command(epilog=show.REPORT_EXAMPLE)(show.report)
    app.command(epilog=manage.CANCEL_EXAMPLE)(manage.cancel)
    app.command(epilog=manage.SCALE_EXAMPLE)(manage.scale)
    app.command(epilog=manage.ROLLBACK_EXAMPLE)(manage.rollback)
    app.command(epilog=prepare.PLAN_EXAMPLE)(prepare.plan)
    app.command(epilog=place.EXAMPLE)(place.place)
    app.command("simulate", epilog=start.SIMULATE_EXAMPLE)(start.simulate_command())
    app.add_typer(ami.application(), name="ami")
    return app
