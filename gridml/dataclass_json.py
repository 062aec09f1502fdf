"""Conversion of frozen dataclasses with plain fields (numbers, strings, paths, tuples, None) to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
MAX_FLOAT = 2**1023  # a whole number beyond it has no float


def to_json(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values: paths become strings, tuples lists."""
    return {field.name: _plain(getattr(instance, field.name)) for field in dataclasses.fields(instance)}


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    """Make a `cls` from the result of `to_json`.

    Raises TypeError for an unknown or missing field, and for a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"got {values!r} for {cls.__name__}, expected an object")
    hints = get_type_hints(cls)
    return cls(**{name: _parsed(name, value, hints.get(name)) for name, value in values.items()})


def parse(cls: type[T], text: bytes) -> T:
    """Make a `cls` from the JSON of one of our own files. Raises ValueError as `loads` does."""
    try:
        return from_json(cls, loads(text))
    except TypeError as error:
        raise ValueError(f"not a {cls.__name__}: {error}") from None


def loads(text: bytes) -> Any:
    """Decode the JSON of one of our own files. Raises ValueError for anything else, infinite numbers among it."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"got {text}, expected a finite number")
    return number


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _parsed(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return None if value is None else _parsed(name, value, next(p for p in get_args(hint) if p is not type(None)))
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_parsed(name, part, get_args(hint)[0]) for part in value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) is int and abs(value) < MAX_FLOAT:
        return float(value)
    # bool is a subclass of int, but is not accepted as a number
    if isinstance(hint, type) and (not isinstance(value, hint) or (type(value) is bool and hint is not bool)):
        raise TypeError(f"{name} is {value!r}, expected {hint.__name__}")
    return value
