"""The options of a command, given by name to a call: the same names and defaults, and values of Python's own types."""

from __future__ import annotations

import difflib
import inspect
import operator
import os
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from gridml.errors import UsageError


def values_of(
    call: str, parameters: Iterable[inspect.Parameter], given: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the values of all options of a command: those `given`, and the defaults of the others. What is given as
    None is as if it were not. `without` are options that make sense at a terminal only.

    Raises UsageError for a name that the command does not have, and for a value of another type.
    """
    options, unfit = {p.name: p for p in parameters}, {*without}
    for name in given:
        if name not in options or name in unfit:
            raise UsageError(_unknown(call, name, [n for n in options if n not in unfit]))
    values = {name: None if p.default is inspect.Parameter.empty else p.default for name, p in options.items()}
    named = {name: value for name, value in given.items() if value is not None}
    return values | {name: _fitting(call, name, value, options[name].annotation) for name, value in named.items()}


def _unknown(call: str, name: str, options: list[str]) -> str:
    close = difflib.get_close_matches(name, options, 1)
    meant = f"did you mean {close[0]}? It takes" if close else "it takes"
    return f"{call} got {name}=…, which is no option of it; {meant} {', '.join(sorted(options))}."


def _fitting(call: str, name: str, value: Any, annotation: Any) -> Any:
    """Return a value as the command line would have parsed it."""
    hint = get_args(annotation)[0]
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    try:
        if get_origin(hint) is list:
            (inner,) = get_args(hint)
            several = [value] if isinstance(value, str | os.PathLike) else [*value]
            return [_plain(inner, part) for part in several]
        return _plain(hint, value)
    except (TypeError, ValueError):
        kind = f"a list of {get_args(hint)[0].__name__}" if get_origin(hint) is list else _KINDS.get(hint, hint)
        raise UsageError(f"{call} got {name}={value!r}; expected {kind}.") from None


_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Path: "a path"}


def _plain(kind: Any, value: Any) -> Any:
    """Return a value of a type that an option has. Raises TypeError."""
    if kind is bool or isinstance(value, bool):
        if kind is not bool or not isinstance(value, bool):
            raise TypeError
        return value
    if kind is int:
        return operator.index(value)
    if kind is float:
        return float(value) if not isinstance(value, str) else _refused()
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if kind is str and isinstance(value, int | float):
        return str(value)  # chunk=256 as --chunk 256
    if kind is Path:
        return Path(os.fspath(value))
    return value if isinstance(value, kind) else _refused()


def _refused() -> Any:
    raise TypeError
