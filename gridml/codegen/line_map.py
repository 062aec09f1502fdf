"""Errors of numba's compiler, with the lines of the user's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gridml.codegen.stage_code import StageError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What numba says of a type error, and what to write instead.
_INSTEAD = (
    (
        r"Cannot unify (\S+) and (\S+) for '(\w+?)(?:\.\d+)?'",
        r"\3 is \1 at one place and \2 at another; give it one type",
    ),
    (
        r"[Vv]ariable '?(\w+?)(?:\.\d+)?'? (?:is not defined|referenced before)",
        r"\1 may have no value here; set it before the if",
    ),
    (
        r"Function\(<built-in function setitem>\)|Only accept returning of array",
        "an array was assigned to one number; write a loop over its elements",
    ),
    (r"No implementation of function Function\(<built-in function (\w+)>\)", r"\1 is not defined for these values"),
)


def explained(error: Exception, generated: str, lines: Mapping[int, tuple[str, int]], stage: str) -> StageError:
    """Return an error of numba's compiler as one that names the user's file and line. `generated` is the path of the
    module that it could not compile, `lines` the user's lines by its lines."""
    text = _COLOUR.sub("", str(error))
    named = [int(n) for n in re.findall(rf'{re.escape(Path(generated).name)}"?, line (\d+)', text)]
    named += [int(n) for n in re.findall(rf"{re.escape(Path(generated).name)} \((\d+)\)", text)]
    place = next((lines[n] for n in named if n in lines), None)
    where = stage if place is None else f"{Path(place[0]).name}:{place[1]}"
    for pattern, instead in _INSTEAD:
        if found := re.search(pattern, text):
            return StageError(f"{where}: {found.expand(instead)}.")
    said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("Failed", "During"))]
    return StageError(f"{where}: the compiler refuses it: {said[0] if said else type(error).__name__}")
