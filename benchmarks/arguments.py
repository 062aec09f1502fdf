"""What a benchmark is asked for on its command line, and `--help` for each: the text at the top of its file.

Each has a smallest form, `--smallest`, in which it takes seconds: so that tests can see that it still works.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_SMALLEST = "--smallest"
_TINY = "GRIDML_TINY"  # programs that read it are small, wherever they run


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose `--help` is the text at the top of a file. In the smallest form programs are small, too."""
    if smallest():
        os.environ[_TINY] = "1"
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(_SMALLEST, action="store_true", help="see that it works: figures say nothing and are not kept")
    return parser


def smallest() -> bool:
    """Whether the smallest form is asked for, of this process or of the one that spawned it."""
    return _SMALLEST in sys.argv[1:]


def sized(usual: T, small: T) -> T:
    """Return what a benchmark takes, or what it takes in its smallest form."""
    return small if smallest() else usual


def words(doc: str | None, *, choices: Sequence[str] | None = None) -> list[str]:
    """Return the words that are asked for, none or more. Ends with a message where one is not among `choices`."""
    parser = parser_of(doc)
    parser.add_argument("asked", nargs="*", metavar="NAME", help=", ".join(choices or ()) or "see above")
    asked: list[str] = parser.parse_args().asked
    for word in asked:
        if choices is not None and word not in choices:
            parser.error(f"got {word}, expected {', '.join(choices)}")
    return asked


def whole_numbers(doc: str | None, *defaults: int) -> list[int]:
    """Return the whole numbers that are asked for, however many, or the defaults where there are none."""
    parser = parser_of(doc)
    parser.add_argument("asked", nargs="*", type=int, metavar="N", default=list(defaults))
    return list(parser.parse_args().asked)


def numbers(doc: str | None, **defaults: int) -> list[int]:
    """Return a whole number for each name in turn; those at the end that are not asked for are the defaults."""
    parser = parser_of(doc)
    for name, default in defaults.items():
        parser.add_argument(name, nargs="?", type=int, metavar=name.upper(), default=default, help=f"{default:,}")
    asked = vars(parser.parse_args())
    return [asked[name] for name in defaults]
