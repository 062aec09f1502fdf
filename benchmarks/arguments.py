"""Command lines of benchmarks, with `--help` from the module docstring of each.

Each benchmark has a smallest form, `--smallest`, which takes seconds, so that tests can check that it still works.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_SMALLEST = "--smallest"
_TINY = "GRIDML_TINY"  # programs that read it are small; an environment variable, because workers inherit it


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose `--help` is the module docstring `doc`. In the smallest form programs are small, too."""
    if smallest():
        os.environ[_TINY] = "1"
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(_SMALLEST, action="store_true", help="a quick check: the figures mean nothing and are not kept")
    return parser


def smallest() -> bool:
    """Return True if the smallest form is requested, for this process or for the one that spawned it."""
    # Modules call this at import, before any parser exists, so it reads the command line itself.
    return _SMALLEST in sys.argv[1:]


def sized(usual: T, small: T) -> T:
    """Return the usual size, or the small one in the smallest form."""
    return small if smallest() else usual


def words(doc: str | None, *, choices: Sequence[str] | None = None) -> list[str]:
    """Return the requested names, none or more. Exits with a message for a name that is not among `choices`."""
    parser = parser_of(doc)
    parser.add_argument("asked", nargs="*", metavar="NAME", help=", ".join(choices or ()) or "see above")
    asked: list[str] = parser.parse_args().asked
    for word in asked:
        if choices is not None and word not in choices:
            parser.error(f"got {word}, expected {', '.join(choices)}")
    return asked


def whole_numbers(doc: str | None, *defaults: int) -> list[int]:
    """Return the requested integers, or the defaults if none are given."""
    parser = parser_of(doc)
    parser.add_argument("asked", nargs="*", type=int, metavar="N", default=list(defaults))
    return list(parser.parse_args().asked)


def numbers(doc: str | None, **defaults: int) -> list[int]:
    """Return an integer for each name in turn; the last ones may be left out and get their defaults."""
    parser = parser_of(doc)
    for name, default in defaults.items():
        parser.add_argument(name, nargs="?", type=int, metavar=name.upper(), default=default, help=f"{default:,}")
    asked = vars(parser.parse_args())
    return [asked[name] for name in defaults]
