"""What commands take, as typer reads it: arguments, and options made of their description; and how commands speak."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from gridml.protocol.foreign import printable
from master.state.options import Described, Option, in_panels, panel_of

JSON = "--json"
INTERRUPTED = 130  # exit status of a command that Ctrl-C ended

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
Json = Annotated[bool, typer.Option(JSON, help="JSON on standard output, for programs.")]


def say(text: str, *, err: bool = False) -> None:
    """Print text as text, whatever is in it: what a terminal would obey is shown as an escape."""
    typer.echo(printable(text, sys.maxsize), err=err)


def as_typer_reads(
    body: Callable[..., None], text: str, options: Iterable[Described], *arguments: inspect.Parameter
) -> Callable[..., None]:
    """Return a command that does what `body` does, with this help, these arguments and options."""

    def command(**values: Any) -> None:
        body(**values)

    signature = inspect.Signature([*arguments, *map(_as_typer_reads, in_panels(options))])
    command.__doc__ = text
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def argument(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return what stands on the command line without a name."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _as_typer_reads(each: Described) -> inspect.Parameter:
    if isinstance(each.extra, Option):
        option, default = each.option, each.default
        extra = typer.Option(
            *each.flags,
            help=option.help,
            metavar=option.metavar,
            hidden=option.hidden,
            show_default=default is not None and default is not False and default not in ("", []),
        )
    else:
        extra = copy.copy(each.extra)  # by a package that knows typer's own
    extra.rich_help_panel = panel_of(each)
    annotated: Any = Annotated  # which a type checker wants to read itself
    return each.parameter(annotated[each.kind, extra])
