"""Entry point of the command line: registers all commands. No other module of gridml imports this one.

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

from gridml.cli import ami, manage, place, start
from gridml.cli.arguments import INTERRUPTED, JSON, add, echo, tolerate_closed_pipe, typer_command
from gridml.errors import DataError, GridmlError, UsageError, UserCodeError
from master.state.options import in_panels


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `gridml` and exit the process.

    A GridmlError is printed as one message on stderr. With `--json`, it is also the last line of stdout: an object
    with `error` and `exit_status`.
    """
    arguments = sys.argv[1:] if argv is None else [*argv]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names are not always valid text
    # Streams that a test has replaced stay as they are.
    if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:
        sys.stdout, sys.stderr = tolerate_closed_pipe(sys.stdout), tolerate_closed_pipe(sys.stderr)
    try:
        commands = command_line()  # imports the back ends, which takes long enough for a Ctrl-C
    except KeyboardInterrupt:
        echo("Stopped before the command began.", err=True)
        sys.exit(INTERRUPTED)
    try:
        # In standalone mode typer prints usage errors itself, as text, and exits; with --json they must be JSON too.
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
        try:
            version = metadata.version("gridml")
        except metadata.PackageNotFoundError:  # run from a checkout, with PYTHONPATH
            version = "not installed"
        typer.echo(json.dumps({"gridml": version}) if context.params["as_json"] else f"gridml {version}")
        raise typer.Exit


def _options(
    as_json: Annotated[bool, typer.Option(JSON, hidden=True, is_eager=True)] = False,  # eager, since _version reads it
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version)] = False,
) -> None:
    """Options before the command name."""
    # `gridml --json --version` is valid and never reaches this check, because the callback of --version exits first.
    if as_json:
        raise UsageError(f"got {JSON} before the command; expected it after, as in gridml status RUN {JSON}.")


def command_line() -> typer.Typer:
    """Return the application with all its commands."""
    from gridml.api.run_calls import resume_options
    from master.backends.registry import BACKENDS
    from master.backends.simulated_plugin import simulate_options

    app = typer.Typer(
        help="Train models on machines that come and go.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        callback=_options,
    )
    # `--help` lists commands in the order of their registration.
    for plugin in BACKENDS.all().values():
        if plugin.command is not None:
            epilog = f"Example: {plugin.command.example}"
            app.command(plugin.command.verb, epilog=epilog)(start.start_command(plugin))
        if upkeep := plugin.upkeep():
            more = typer.Typer(help=f"Manage what gridml has on the {plugin.name} back end.", no_args_is_help=True)
            for name, each in upkeep.items():
                more.command(name, epilog=f"Example: {each.example}")(each.call)
            app.add_typer(more, name=plugin.name)
    add(app, start.check)
    add(app, typer_command(start.resume, in_panels(resume_options())))
    for command in (
        manage.status,
        manage.watch,
        manage.report,
        manage.export,
        manage.cancel,
        manage.scale,
        manage.rollback,
        start.plan,
    ):
        add(app, command)
    add(app, place.place)
    add(app, typer_command(start.simulate, in_panels(simulate_options())))
    app.add_typer(ami.application(), name="ami")
    return app
