"""The command line: registers the commands. Nothing imports this module.

Each command has a file in `gridml/commands`; those that begin a run are made of what the back ends bring.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from gridml.commands import cancel, plan, report, resume, rollback, simulate, status, watch
from gridml.errors import GridmlError, UserCodeError


def main(argv: Sequence[str] | None = None) -> None:
    """The console script `gridml`. Ends the process; an error meant for a person is one message on stderr."""
    try:
        command_line()(args=None if argv is None else list(argv), prog_name="gridml")
    except GridmlError as error:
        if isinstance(error, UserCodeError) and error.traceback_text:
            typer.echo(error.traceback_text, err=True)
        typer.echo(f"{typer.style('Error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(error.exit_status)


def command_line() -> typer.Typer:
    """Return the application with all its commands."""
    from gridml.commands.start import start_command
    from master.backends.registry import BACKENDS

    app = typer.Typer(
        help="Train models on machines that come and go.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for plugin in BACKENDS.all().values():
        if plugin.command is not None:
            epilog = f"Example: {plugin.command.example}"
            app.command(plugin.command.verb, epilog=epilog)(start_command(plugin))
    app.command(epilog=resume.EXAMPLE)(resume.resume)
    app.command(epilog=status.EXAMPLE)(status.status)
    app.command(epilog=watch.EXAMPLE)(watch.watch)
    app.command(epilog=report.EXAMPLE)(report.report)
    app.command(epilog=cancel.EXAMPLE)(cancel.cancel)
    app.command(epilog=rollback.EXAMPLE)(rollback.rollback)
    app.command(epilog=plan.EXAMPLE)(plan.plan)
    app.command(epilog=simulate.EXAMPLE)(simulate.simulate)
    return app
