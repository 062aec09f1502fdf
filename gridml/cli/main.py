"""The command line: registers the commands. Nothing imports this module.

Each command has a file in `gridml/commands`; those that begin a run are made of what the back ends bring.
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
from gridml.cli.arguments import INTERRUPTED, JSON, say, tolerate_closed_pipe
from gridml.errors import DataError, GridmlError, UsageError, UserCodeError


def main(argv: Sequence[str] | None = None) -> None:
    """The console script `gridml`. Ends the process; an error meant for a person is one message on stderr, and with
    `--json` an object with `error` and `exit_status` on the last line of stdout, too."""
    arguments = sys.argv[1:] if argv is None else [*argv]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    # Not what stands in for them, as in tests.
    if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:
        sys.stdout, sys.stderr = tolerate_closed_pipe(sys.stdout), tolerate_closed_pipe(sys.stderr)
    try:
        commands = command_line()
    except KeyboardInterrupt:
        say("Stopped before the command began.", err=True)
        sys.exit(INTERRUPTED)
    try:
        ended = commands(args=arguments, prog_name="gridml", standalone_mode=JSON not in arguments)
    except GridmlError as error:
        _fail(error, as_json=JSON in arguments)
    except Exception as error:
        if not hasattr(error, "format_message"):  # only what the parser of the command line raises has one
            raise
        _fail(UsageError(f"{error.format_message()} See gridml --help."), as_json=True)
    else:
        sys.exit(ended if isinstance(ended, int) else 0)


def _fail(error: GridmlError, *, as_json: bool) -> None:
    """Say what was wrong, and end the process."""
    traceback = error.traceback_text if isinstance(error, UserCodeError | DataError) else ""
    if traceback:
        say(traceback, err=True)
    typer.echo(typer.style("Error: ", fg="red", bold=True), err=True, nl=False)
    say(str(error), err=True)
    if as_json:
        answer = {"error": str(error), "exit_status": error.exit_status}
        typer.echo(json.dumps({**answer, "traceback": traceback} if traceback else answer))
    sys.exit(error.exit_status)


def _version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        version = metadata.version("gridml")
        typer.echo(json.dumps({"gridml": version}) if context.params["as_json"] else f"gridml {version}")
        raise typer.Exit


def _options(
    as_json: Annotated[bool, typer.Option(JSON, hidden=True, is_eager=True)] = False,  # so that _version knows of it
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.", callback=_version)] = False,
) -> None:
    """What stands before the command."""
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
            more = typer.Typer(help=f"Look after what gridml has on the back end {plugin.name}.", no_args_is_help=True)
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
