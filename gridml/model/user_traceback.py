"""The traceback of an error in the user's code, as they want to see it."""

from __future__ import annotations

import traceback
from pathlib import Path

from gridml.errors import GridmlError
from gridml.protocol.text import TRACEBACK, printable

_GRIDML = Path(__file__).parents[1]  # its folder


def user_traceback(error: BaseException, path: Path) -> str:
    """Return the traceback of an error from the first frame in the user's file on, printable and short: frames of
    gridml's are no help to them, and of an error that it raises on purpose the message is enough."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if Path(f.filename).resolve() == path.resolve()]
    shown = [f for f in frames[own[0] :] if not _is_ours(f.filename)] if own else []
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)] if shown else []
    words = [str(error)] if isinstance(error, GridmlError) else traceback.format_exception_only(error)
    return printable("".join([*lines, *words]).rstrip(), TRACEBACK)


def called_traceback(error: BaseException) -> str:
    """Return the traceback of an error below the frame that caught it, printable and short."""
    frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])
    lines = ["Traceback (most recent call last):\n", *frames] if frames else []
    return printable("".join([*lines, *traceback.format_exception_only(error)]).rstrip(), TRACEBACK)


def _is_ours(file: str) -> bool:
    return file == "<string>" or Path(file).is_relative_to(_GRIDML)  # where dataclasses make their methods
