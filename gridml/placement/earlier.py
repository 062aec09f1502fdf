"""An earlier placement, kept in a folder, and where it has the rows and columns of a graph as it is now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement import folder
from gridml.placement.again import NEW, Before
from gridml.placement.base import Parts, Placement
from gridml.placement.files.numbered import Numbered, Numbers

_AGAIN = "Place the graph without --from."


def before(root: Path, given: Numbered) -> Before:
    """Return where the placement in a folder has the rows and columns of a graph: those of a list of edges are known by
    their numbers, others by their places, and what comes after these is new.

    Raises UsageError where the folder holds no placement, or one of something else.
    """
    placement = _placement(root)
    rows, columns = (_numbers(root, name) for name in (folder.ROW_NUMBERS, folder.COLUMN_NUMBERS))
    if (root / folder.MADE).exists():
        raise UsageError(
            f"{root} has rows that were made of a general graph's edges or cliques, which are not known again. {_AGAIN}"
        )
    if (columns is None) != (given.columns is None) or (rows is None) != (given.rows is None):
        one, other = ("numbers", "places") if rows is not None else ("places", "numbers")
        raise UsageError(
            f"{root} knows rows by their {one}, and the graph by their {other}; expected a graph in the same format."
        )
    if rows is None or columns is None or given.rows is None or given.columns is None:
        try:
            return Before.of(placement, given.graph)
        except UsageError as error:
            raise UsageError(f"{root} is not of this graph: {error}") from error
    for name, numbers, parts in (
        (folder.ROW_NUMBERS, rows, placement.rows),
        (folder.COLUMN_NUMBERS, columns, placement.columns),
    ):
        if numbers.shape != parts.shape:
            raise _damaged(root / name, f"{numbers.shape} numbers of {parts.shape} parts")
    found = Before(
        placement.parts, _known(placement.rows, rows, given.rows), _known(placement.columns, columns, given.columns)
    )
    if not ((found.rows >= 0).any() and (found.columns >= 0).any()):
        raise UsageError(f"{root} is not of this graph: they have no row, or no column, in common. {_AGAIN}")
    return found


def without(was: Before, lost: str, parts: int) -> Before:
    """Return where rows and columns were, the `lost` parts, numbers between commas, numbered last: on `parts` parts,
    which the others must be enough for, they are gone. Raises UsageError for anything else."""
    numbers = [word.strip() for word in lost.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in numbers):
        raise UsageError(f"the lost parts are {lost!r}; expected numbers, such as 3,7.")
    if parts > was.parts - len(numbers):
        raise UsageError(
            f"{was.parts:,} parts without {len(numbers):,} are {was.parts - len(numbers):,}; expected at most as "
            f"many, got -k {parts}."
        )
    return was.with_last([int(word) for word in numbers])


def _placement(root: Path) -> Placement:
    path = root / folder.QUALITY
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}. Name the --out folder of an earlier placement."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    rows, columns = _whole(root / folder.ROWS), _whole(root / folder.COLUMNS)
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= len(rows):
        raise _damaged(path, f"it says {parts!r} parts of {len(rows):,} rows")
    return Placement(parts, _parts(root / folder.ROWS, rows, parts), _parts(root / folder.COLUMNS, columns, parts), "")


def _parts(path: Path, values: NDArray[Any], parts: int) -> Parts:
    if len(values) and not (values.min() >= 0 and values.max() < parts):
        raise _damaged(path, f"it has parts from {values.min()} to {values.max()} where there are {parts:,}")
    return values.astype(np.int32)


def _numbers(root: Path, name: str) -> Numbers | None:
    if not (root / name).exists():
        return None
    numbers = _whole(root / name).astype(np.int64)
    if (numbers[1:] <= numbers[:-1]).any():
        raise _damaged(root / name, "its numbers do not ascend")
    return numbers


def _whole(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            more = file.read(1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}. Name the --out folder of an earlier placement."
        ) from error
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        raise _damaged(path, str(error)) from error
    if more or array.ndim != 1 or array.dtype.kind != "i":
        raise _damaged(
            path, f"got {array.dtype} {array.shape}{' and more' if more else ''}, not a row of whole numbers"
        )
    return array


def _damaged(path: Path, what: str) -> UsageError:
    return UsageError(f"{path} is damaged: {' '.join(what.split())[:120]}. {_AGAIN}")


def _known(parts: Parts, numbers: Numbers, wanted: Numbers) -> Parts:
    """Return the part of each of the wanted numbers, −1 where there is none."""
    if not len(numbers):
        return np.full(len(wanted), NEW, np.int32)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[at] == wanted, parts[at], NEW).astype(np.int32)
