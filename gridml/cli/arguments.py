"""Typer commands built from dataclasses of options, and the output functions that all commands share."""

from __future__ import annotations

import copy
import inspect
import io
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gridml.protocol.foreign import printable
from master.state.options import Described, Option, described, fields_of, panel_of

JSON = "--json"
INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
Json = Annotated[bool, typer.Option(JSON, help="Print JSON to standard output.")]
JsonLines = Annotated[bool, typer.Option(JSON, help="Print JSON Lines to standard output: an object a line.")]
Table = TypeVar("Table")


def echo(text: str, *, err: bool = False) -> None:
    """Print text with control characters escaped, because it can contain names or output from other machines."""
    typer.echo(printable(text, sys.maxsize), err=err)


class _ClosedPipeTolerant(io.FileIO):
    """A file that drops its output once the reader of the pipe has gone, as with `gridml run ... | head`.

    The command then continues to its usual end and exit status: a run keeps training, an instance is still removed.
    Only `gridml watch`, which does nothing but print, stops when the reader has gone.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)  # reported as written: otherwise the buffer would write it again


def tolerate_closed_pipe(stream: Any) -> Any:
    """Return a replacement for stdout or stderr that survives a closed pipe. A stream that is not an io.TextIOWrapper
    is returned unchanged."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()  # otherwise buffered text could be lost, or appear after text written to the replacement
    raw = _ClosedPipeTolerant(stream.fileno(), "wb", closefd=False)
    # The original stream stays usable, because `closefd=False` leaves its descriptor open.
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def print_result(value: Any, *parts: str | Callable[[], None], as_json: bool) -> None:
    """Print the result of a command: `value` as JSON, or else `parts`, each a line or a function that prints."""
    if as_json:
        from master.views.console import json_text

        typer.echo(json_text(value, indent=2))
        return
    for part in parts:
        if isinstance(part, str):
            echo(part)
        else:
            part()


def add(app: typer.Typer, command: Callable[..., None], name: str | None = None) -> None:
    """Add a command to an application. The last paragraph of its docstring, an example, is shown below its options."""
    text, _, example = (inspect.getdoc(command) or "").rpartition("\n\n")
    app.command(name, help=text, epilog=example.replace("\n", " "))(command)


def takes_options(table: type[Table]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that turns a function into a command with the options of `table`, a dataclass.

    The function receives an instance of `table` as its first argument; its other parameters become arguments too.
    """

    def command(body: Callable[..., None]) -> Callable[..., None]:
        def with_options(**values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in described(table)}
            body(table(**fields_of(table, given)), **values)

        with_options.__name__, with_options.__doc__ = body.__name__, body.__doc__
        # `partial` removes the first parameter, the table. `eval_str` evaluates annotations, which are strings.
        with_options.__signature__ = inspect.signature(partial(body, None), eval_str=True)  # type: ignore[attr-defined]
        return typer_command(with_options, described(table))

    return command


def typer_command(body: Callable[..., None], options: Iterable[Described], text: str = "") -> Callable[..., None]:
    """Return a typer command that calls `body` with its own parameters and with `options` as keyword arguments.

    The help is `text`, or else the docstring of `body`.
    """

    def command(**values: Any) -> None:
        body(**values)

    # Keyword-only, because a required parameter cannot follow an optional positional one.
    own = [
        each.replace(kind=each.KEYWORD_ONLY)
        for each in inspect.signature(body, eval_str=True).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
    # `--help` lists parameters in this order: arguments, then the table's options, then `--json` and the like.
    last = [each for each in own if isinstance(each.annotation.__metadata__[0], typer.models.OptionInfo)]
    asked = [*(each for each in own if each not in last), *map(_typer_parameter, options), *last]
    command.__name__, command.__doc__ = body.__name__, text or body.__doc__
    command.__annotations__ = {each.name: each.annotation for each in asked}
    command.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
    return command


def _typer_parameter(each: Described) -> inspect.Parameter:
    if isinstance(each.extra, Option):
        option, default = each.option, each.default
        extra = typer.Option(
            *each.flags,
            help=option.help,
            metavar=option.metavar,
            hidden=option.hidden,
            # These defaults only mean that the option was not given, so `--help` shows no value for them.
            show_default=default is not None and default is not False and default not in ("", []),
        )
    else:
        extra = copy.copy(each.extra)  # already a typer option; a copy, because its panel is set below
    extra.rich_help_panel = panel_of(each)
    annotated: Any = Annotated  # as Any: a type checker rejects an annotation that is built at run time
    return each.parameter(annotated[each.kind, extra])
