"""Options: what a person may ask of a command or a call, described once, beside the field that holds it.

    seats: int = option(1, "Seats of the lab.")

The command line, the calls from Python, their help and the reference are made of such fields: of `Settings`
(master/store/settings.py), of a back end's own options, and of a table for each command that has many of its own.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from gridml.errors import UsageError

Call = TypeVar("Call", bound=Callable[..., Any])
Value = TypeVar("Value")
BEGIN, RESUME, SIMULATE = "begin", "resume", "simulate"
EVERYWHERE = (BEGIN, RESUME, SIMULATE)
# Panels of `--help`, in their order; the first has what most people need.
FIRST, TRAINED, WORKERS, SIZES, MERGING, FAILURES, OUTPUT = PANELS = (
    "Options",
    "What to train",
    "Workers",
    "Sizes",
    "Merging",
    "Failures",
    "Output",
)
FROM_1, ABOVE_0 = (1, math.inf), math.ulp(0.0)  # bounds of numbers, and the least number above 0
_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Path: "a path"}


@dataclass(frozen=True)
class Option:
    """How a field is asked for."""

    help: str = ""
    #: under which heading of `--help`; otherwise the `PANEL` of its dataclass, or as a back end's own, WORKERS
    panel: str | None = None
    #: the commands that have it: BEGIN, RESUME, SIMULATE
    commands: tuple[str, ...] = EVERYWHERE
    #: what it is called in Python and, with dashes, on the command line; otherwise as the field
    name: str | None = None
    #: what it is called on the command line instead, with its older names
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    #: the type of what a person gives, where that is not the field's
    kind: Any = None
    #: makes of it the field's value, or the values of several fields by name
    read: Callable[[Any], Any] | None = None
    #: the least and the largest number, for `check_bounds`, and in words what is expected, "" for these bounds
    bounds: tuple[float, float] | None = None
    expected: str = ""
    #: why the setting must stay while a run goes on, "" where it may change
    fixed: str = ""
    #: makes sense at a terminal only, and is no option of a call
    terminal: bool = False
    hidden: bool = False


class Described(NamedTuple):
    """An option as commands and calls have it. `extra` is its Option, or what another package has put there for typer;
    `field` is the dataclass's name of it."""

    name: str
    field: str
    kind: Any
    default: Any
    extra: Any

    @property
    def option(self) -> Option:
        return self.extra if isinstance(self.extra, Option) else Option(getattr(self.extra, "help", None) or "")

    @property
    def in_calls(self) -> bool:
        """Whether calls have it, and not the command line alone."""
        return not (self.option.terminal or self.option.hidden)

    @property
    def flags(self) -> tuple[str, ...]:
        """What it is called on the command line; the first is its name."""
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    def changed(self, **changes: Any) -> Described:
        """Return it with another kind or default, or other values of its Option."""
        own = {name: changes.pop(name) for name in self._fields if name in changes}
        return self._replace(**own, extra=dataclasses.replace(self.option, **changes) if changes else self.extra)

    def parameter(self, annotation: Any = None) -> inspect.Parameter:
        """Return it as a signature has it."""
        hint = self.kind if annotation is None else annotation
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=hint)

    @property
    def optional(self) -> Described:
        """The same, and None where it is not given."""
        return self._replace(kind=self.kind | None, default=None)


def option(default: Value, help: str = "", *where: Any, **how: Any) -> Value:
    """Return a dataclass's field with this default that is an option; `where` and `how` are those of `Option`."""
    field: Any = dataclasses.field(default=default, metadata={Option: Option(help, *where, **how)})
    value: Value = field
    return value


def described(table: Any, command: str | None = None) -> tuple[Described, ...]:
    """Return the options among the fields of a dataclass: those that a `command` has, or all of them. A field is one by
    `option`, or as it is `Annotated` with an `Option` or what another package has for typer. What can be given several
    times is a tuple in the field, and a list here; what must be given has no default."""
    return _described(table, command)


@cache
def _described(table: Any, command: str | None) -> tuple[Described, ...]:
    hints = get_type_hints(table, include_extras=True)
    found = []
    for field in dataclasses.fields(table):
        kind, extra = hints[field.name], field.metadata.get(Option)
        if get_origin(kind) is Annotated:
            kind, extra, *_ = get_args(kind)
        elif extra is None:
            continue
        if isinstance(extra, Option) and extra.panel is None:
            extra = dataclasses.replace(extra, panel=getattr(table, "PANEL", None))
        option = extra if isinstance(extra, Option) else Option()
        if command is not None and command not in option.commands:
            continue
        default = field.default
        if default is dataclasses.MISSING:
            default = None if field.default_factory is not dataclasses.MISSING else inspect.Parameter.empty
        if get_origin(kind) is tuple and option.kind is None:
            kind, default = list[get_args(kind)[0]], [*(default or ())]  # type: ignore[misc]
        if option.kind is not None:
            kind, default = option.kind | None, None
        found.append(Described(option.name or field.name, field.name, kind, default, extra))
    return tuple(found)


def check_bounds(values: Any, **flags: str) -> None:
    """Raise UsageError where a number is outside the bounds that its option has in the dataclass of the `values`;
    `flags` are what some fields are called on the command line, where that is not in their description."""
    for each in described(type(values)):
        value, bounds, flag = getattr(values, each.field), each.option.bounds, flags.get(each.field, each.flags[0])
        if value is None or bounds is None or bounds[0] <= value <= bounds[1]:
            continue
        if expected := each.option.expected:
            raise UsageError(f"{flag} is {value:{'g' if isinstance(value, float) else ','}}; expected {expected}.")
        if not value > bounds[1]:
            raise UsageError(f"{flag} is {value}; expected at least {bounds[0]}.")
        raise UsageError(f"{flag} is {value:,}; expected at most {bounds[1]:,}.")


def in_panels(options: Iterable[Described]) -> list[Described]:
    """Return options as `--help` shows them: by panel, the first panel first."""
    return sorted(options, key=lambda each: PANELS.index(panel_of(each)) if panel_of(each) in PANELS else len(PANELS))


def panel_of(option: Described) -> str:
    """Return the panel of `--help` in which an option stands."""
    return option.option.panel or getattr(option.extra, "rich_help_panel", None) or WORKERS


def fields_of(table: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass's fields that the values of options say; None is as if it were not given."""
    fields: dict[str, Any] = {}
    for each in described(table):
        value = values.get(each.name)
        if value is None:
            continue
        read = each.option.read
        value = read(value) if read is not None else tuple(value) if isinstance(value, list) else value
        fields |= value if isinstance(value, dict) else {each.field: value}
    return fields


def values_of(call: str, options: Iterable[Described], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options of a call: those `given`, as the command line would have parsed them, and the
    defaults of the others. What is given as None is as if it were not.

    Raises UsageError for a name that is no option, or one of the terminal's only, and for a value of another type.
    """
    by_name = {each.name: each for each in options}
    known = sorted(name for name, each in by_name.items() if each.in_calls)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]}? It takes" if close else "it takes"
            raise UsageError(f"{call} got {name}=…, which is no option of it; {meant} {', '.join(known)}.")
    values = {name: each.default for name, each in by_name.items()}
    named = ((name, value) for name, value in given.items() if value is not None)
    return values | {name: _fitting(call, name, value, by_name[name].kind) for name, value in named}


def _fitting(call: str, name: str, value: Any, kind: Any) -> Any:
    """Return a value as the command line would have parsed it."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    several = get_origin(kind) is list
    inner = get_args(kind)[0] if several else kind
    try:
        if several:
            return [_plain(inner, part) for part in ([value] if isinstance(value, str | os.PathLike) else value)]
        return _plain(inner, value)
    except (TypeError, ValueError):
        expected = f"a list of {inner.__name__}" if several else _KINDS.get(kind, kind)
        raise UsageError(f"{call} got {name}={value!r}; expected {expected}.") from None


def _plain(kind: Any, value: Any) -> Any:
    """Return a value of a type that an option has. Raises TypeError."""
    if kind is bool or isinstance(value, bool):
        fits = kind is bool and isinstance(value, bool)
    elif kind is int:
        return operator.index(value)
    elif kind is float:
        value, fits = (value, False) if isinstance(value, str) else (float(value), True)
    elif kind is Path or (kind is str and isinstance(value, os.PathLike)):
        return kind(os.fspath(value))
    elif kind is str and isinstance(value, int | float):
        return str(value)  # chunk=256 as --chunk 256
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise TypeError
    return value


def takes(options: Callable[[], Iterable[Described]]) -> Callable[[Call], Call]:
    """Give a call, which takes any options by name, the signature and the docstring that these options make."""

    def with_options(call: Call) -> Call:
        of_call = [each for each in in_panels(options()) if each.in_calls]
        own = [p for p in inspect.signature(call).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        named = {p.name for p in own}
        parameters = [*own, *(each.parameter() for each in of_call if each.name not in named)]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        lines = [f"    {each.name}: {each.option.help}" for each in of_call]
        call.__doc__ = "\n".join([inspect.getdoc(call) or "", "", "Options:", *lines])
        return call

    return with_options
