"""What a benchmark is asked for on its command line, and `--help` for each: the text at the top of its file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose `--help` is the text at the top of a file."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


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
    return list(vars(parser.parse_args()).values())
