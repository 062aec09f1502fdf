"""Options of commands and calls, each declared once, as a dataclass field.

    seats: int = option(1, "Seats of the lab.")

The command line, the Python calls, their help and the reference are generated from such fields. They are fields of
`Settings` (master/store/settings.py), of each back end's options, or of the dataclass of a command with many options.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import os
import re
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
# Panels of `--help`, in their order; the first has the options that most users need.
FIRST, TRAINED, WORKERS, SIZES, MERGING, FAILURES, OUTPUT = PANELS = (
    "Options",
    "What to train",
    "Workers",
    "Sizes",
    "Merging",
    "Failures",
    "Output",
)
FROM_1, ABOVE_0 = (1, math.inf), math.ulp(0.0)  # bounds of a number that is at least 1; the smallest float above 0
# Types as error messages name them.
_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Path: "a path"}


@dataclass(frozen=True)
class Option:
    """Description of an option. Its type and its default are those of the dataclass field."""

    help: str = ""
    #: panel of `--help`; None: the `PANEL` of its dataclass, or else WORKERS, the panel of a back end's options
    panel: str | None = None
    #: the commands that have it: BEGIN, RESUME, SIMULATE
    commands: tuple[str, ...] = EVERYWHERE
    #: its name in Python and, with dashes, on the command line; None: the field's name
    name: str | None = None
    #: its names on the command line, the current one first; (): made from the name
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    #: type of the value that the user gives; None: the field's type
    kind: Any = None
    #: converts the user's value to the field's value, or to a dict of several fields' values
    read: Callable[[Any], Any] | None = None
    #: smallest and largest number, for `check_bounds`
    bounds: tuple[float, float] | None = None
    #: description of valid values for the error message; "": made from `bounds`
    expected: str = ""
    #: reason why a resumed run cannot change it; "": it can
    fixed: str = ""
    #: True: only useful at a terminal, so calls do not have it
    terminal: bool = False
    #: True: neither in `--help` nor in calls
    hidden: bool = False


class Described(NamedTuple):
    """An option, combined from its field and its description."""

    name: str  #: in Python
    field: str  #: name of its field in the dataclass
    kind: Any  #: type of the value that the user gives
    default: Any
    extra: Any  #: its Option, or the typer option with which a back end of another package annotates the field

    @property
    def option(self) -> Option:
        return self.extra if isinstance(self.extra, Option) else Option(getattr(self.extra, "help", None) or "")

    @property
    def in_calls(self) -> bool:
        """True if calls have the option, too, not only the command line."""
        return not (self.option.terminal or self.option.hidden)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line, the current one first."""
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    def changed(self, **changes: Any) -> Described:
        """Return a copy in which some fields of this object or of its Option are changed."""
        own = {name: changes.pop(name) for name in self._fields if name in changes}
        return self._replace(**own, extra=dataclasses.replace(self.option, **changes) if changes else self.extra)

    def parameter(self, annotation: Any = None) -> inspect.Parameter:
        """Return the option as a parameter of a signature."""
        hint = self.kind if annotation is None else annotation
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=hint)

    @property
    def optional(self) -> Described:
        """A copy whose default is None, which stands for an option that was not given."""
        return self._replace(kind=self.kind | None, default=None)


def option(default: Value, help: str = "", *where: Any, **how: Any) -> Value:
    """Return a dataclass field that is an option with this default. The other arguments are those of `Option`.

    The declared type of the result is the type of the default, so that type checkers accept `seats: int = option(1)`.
    """
    field: Any = dataclasses.field(default=default, metadata={Option: Option(help, *where, **how)})
    value: Value = field
    return value


def described(table: Any, command: str | None = None) -> tuple[Described, ...]:
    """Return the options among the fields of a dataclass; with `command`, only the options of that command.

    A field is an option if `option` made it, or if it is `Annotated` with an `Option` or a typer option. A repeatable
    option is a tuple in the dataclass and a list here. A required option has no default.
    """
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
    """Raise UsageError for the first field of a dataclass whose number is out of bounds. `flags` maps fields to names
    on the command line, which the message uses instead of the names in the fields' descriptions."""
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
    """Return options in the order of `--help`: by panel, in the order of `PANELS`."""
    return sorted(options, key=lambda each: PANELS.index(panel_of(each)) if panel_of(each) in PANELS else len(PANELS))


def panel_of(option: Described) -> str:
    """Return the panel of an option in `--help`."""
    return option.option.panel or getattr(option.extra, "rich_help_panel", None) or WORKERS


def fields_of(table: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values of options, by name, to values of the dataclass's fields. The value None means that the option was
    not given."""
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
    """Return the values of all options of a call: those `given`, converted as the command line converts them, and the
    defaults of the others. None stands for an option that was not given.

    Raises UsageError for an unknown name, for an option that calls do not have, and for a value of another type.
    """
    by_name = {each.name: each for each in options}
    known = sorted(name for name, each in by_name.items() if each.in_calls)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}? It takes" if close else "it takes"
            raise UsageError(f"{call} got {name}=…, which is no option of it; {hint} {', '.join(known)}.")
    values = {name: each.default for name, each in by_name.items()}
    named = ((name, value) for name, value in given.items() if value is not None)
    return values | {name: _fitting(call, name, value, by_name[name].kind) for name, value in named}


def _fitting(call: str, name: str, value: Any, kind: Any) -> Any:
    """Return a value, converted as the command line converts it. Raises UsageError."""
    if get_origin(kind) in (Union, types.UnionType):  # only `T | None` occurs
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
    """Return a value, converted to a plain type of options. Raises TypeError if it does not fit."""
    if kind is bool or isinstance(value, bool):  # before int and float, which would accept a bool
        fits = kind is bool and isinstance(value, bool)
    elif kind is int:
        return operator.index(value)
    elif kind is float:
        value, fits = (value, False) if isinstance(value, str) else (float(value), True)
    elif kind is Path or (kind is str and isinstance(value, os.PathLike)):
        return kind(os.fspath(value))
    elif kind is str and isinstance(value, int | float):
        return str(value)  # so that chunk=256 is the same as --chunk 256
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise TypeError
    return value


def takes(options: Callable[[], Iterable[Described]]) -> Callable[[Call], Call]:
    """Return a decorator for a function with `**options`. It adds these options to the function's signature and
    docstring."""

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


def parse_bytes(option: str, text: str) -> int:
    """Parse a size such as 250kB, 100MB, 1.5 GB into bytes. Raises UsageError for other texts, and for a size below 4
    bytes, the size of one number."""
    parts = re.fullmatch(r"\s*([0-9]{0,12}\.?[0-9]{1,12})\s*([kMG]?)B?\s*", text)
    size = int(float(parts[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[parts[2]]) if parts else 0
    if size < 4:
        raise UsageError(
            f"{option} is {text[:40]!r}; expected a size of at least 4 bytes in B, kB, MB or GB, such as 250kB, 1.5GB."
        )
    return size


def parse_seconds(option: str, text: str | None) -> float | None:
    """Parse an option's duration into seconds; return None for None. Raises UsageError unless the duration is 0 or
    within the bounds of `chunk_model.lifetime`."""
    from chunk_model.lifetime import MAX_DURATION_S, MIN_DURATION_S, LifetimeError, parse_duration

    if text is None:
        return None
    try:
        value = parse_duration(text)
    except LifetimeError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"{option} is {text!r}; expected a time of at least 0 (0 itself, or {MIN_DURATION_S:g} to "
            f"{MAX_DURATION_S:g} s): seconds such as 0.05, or 90s, 45m, 1.5h."
        )
    return value
