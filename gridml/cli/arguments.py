"""Commands as typer reads them, made of tables of options, and how commands speak."""

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
INTERRUPTED = 130  # exit status of a command that Ctrl-C ended

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
Json = Annotated[bool, typer.Option(JSON, help="JSON on standard output, for programs.")]
Table = TypeVar("Table")


def say(text: str, *, err: bool = False) -> None:
    """Print text as text, whatever is in it: what a terminal would obey is shown as an escape."""
    typer.echo(printable(text, sys.maxsize), err=err)


class _ClosedPipeTolerant(io.FileIO):
    """A reader that leaves, as `head` does, is no error. What is written from then on is dropped, and the command goes
    on to its own end and exit status: a run trains on, and an instance is removed, whoever watches. Only `gridml
    watch`, which does nothing but show, ends with its reader."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def tolerate_closed_pipe(stream: Any) -> Any:
    """Return an output that is as the `stream` of this process, and outlasts whoever reads it. What has no file behind
    it stays as it is."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw = _ClosedPipeTolerant(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def answer(value: Any, *said: str | Callable[[], None], as_json: bool) -> None:
    """Print what a command has to say: a value for programs, or for a person lines, and what prints more."""
    if as_json:
        from master.views.console import json_text

        typer.echo(json_text(value, indent=2))
        return
    for each in said:
        if isinstance(each, str):
            say(each)
        else:
            each()


def takes_options(table: type[Table]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function the command that asks for the options of a `table`, a dataclass, whose instance it is given
    first, and for other arguments of its own."""

    def command(body: Callable[..., None]) -> Callable[..., None]:
        def with_options(**values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in described(table)}
            body(table(**fields_of(table, given)), **values)

        with_options.__name__, with_options.__doc__ = body.__name__, body.__doc__
        with_options.__signature__ = inspect.signature(partial(body, None), eval_str=True)  # type: ignore[attr-defined]
        return typer_command(with_options, described(table))

    return command


def typer_command(body: Callable[..., None], options: Iterable[Described], text: str = "") -> Callable[..., None]:
    """Return a command that does what `body` does, with its docstring or this `text` for help: it asks for the
    arguments of `body`, and for these options, which that takes by their names."""

    def command(**values: Any) -> None:
        body(**values)

    own = [
        each.replace(kind=each.KEYWORD_ONLY)
        for each in inspect.signature(body, eval_str=True).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
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
            show_default=default is not None and default is not False and default not in ("", []),
        )
    else:
        extra = copy.copy(each.extra)  # by a package that knows typer's own
    extra.rich_help_panel = panel_of(each)
    annotated: Any = Annotated  # which a type checker wants to read itself
    return each.parameter(annotated[each.kind, extra])
