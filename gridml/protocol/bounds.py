"""What a field of a message may hold: a bound returns a value as it is taken, or raises ValueError and says why not."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from gridml.protocol.text import NAME, printable

Bound = Callable[[Any], Any]

LARGEST = 2**53 - 1  # what JSON, SQLite and floats all hold exactly
LONGEST_S = 1e9  # seconds, 31 years
LEAST_VERTEX_S = 1e-12  # seconds to train a vertex: what claims less is not believed
TICK_S = 1e-9  # what a clock can measure; what is shorter took no time


def whole(least: int = 0) -> Bound:
    """Bound whole numbers from `least` on."""

    def take(value: Any) -> int:
        if type(value) is not int or not least <= value <= LARGEST:
            raise _refused(value, f"a whole number from {least} to 2**53")
        return value

    return take


def seconds(value: Any) -> float:
    """Bound a duration: 0, or what a clock can measure."""
    if type(value) not in (int, float) or not 0 <= value <= LONGEST_S:  # NaN neither
        raise _refused(value, f"seconds from 0 to {LONGEST_S:g}")
    return float(value) if value >= TICK_S else 0.0


def flag(value: Any) -> bool:
    """Bound yes or no."""
    if type(value) is not bool:
        raise _refused(value, "true or false")
    return value


def text(limit: int = NAME) -> Bound:
    """Bound text, which is made printable and cut to `limit` characters."""

    def take(value: Any) -> str:
        if type(value) is not str:
            raise _refused(value, "text")
        return printable(value, limit)

    return take


def numbers(most: int) -> Bound:
    """Bound lists of at most `most` whole numbers from 0 on."""
    each = whole()

    def take(value: Any) -> tuple[int, ...]:
        if type(value) not in (list, tuple) or len(value) > most:
            raise _refused(value, f"a list of at most {most} numbers")
        return tuple(each(number) for number in value)

    return take


def record(make: Callable[..., Any], fields: Mapping[str, Bound], *, optional: bool = False) -> Bound:
    """Bound objects with exactly these fields, of which `make` makes a value; null too, where they are `optional`."""

    def take(value: Any) -> Any:
        if value is None and optional:
            return None
        if not isinstance(value, Mapping):
            raise _refused(value, "an object")
        if differ := value.keys() ^ fields.keys():
            names = printable(reprlib.repr(sorted(differ, key=str)), NAME)
            raise ValueError(f"it lacks, or has beyond what is expected, the fields {names}")
        taken = {}
        for name, bound in fields.items():
            try:
                taken[name] = bound(value[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return make(**taken)

    return take


def _refused(value: Any, expected: str) -> ValueError:
    return ValueError(f"got {printable(reprlib.repr(value), NAME)}, expected {expected}")
