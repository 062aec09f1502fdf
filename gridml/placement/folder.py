"""The folder of a saved placement: it is written atomically, with all of its files or not at all.

The folder holds the part of each row and column. If the graph was read from a list of edges, it also holds the numbers
by which the list names rows and columns. If rows were made from the edges or cliques of a general graph, it also holds
the graph of these rows. Numbers and that graph cannot be derived from the positions of rows and columns. `before` reads
an earlier placement and matches it with the rows and columns of the present graph.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, save_npz

from gridml.errors import StorageError, UsageError
from gridml.placement.base import Parts, Placement
from gridml.placement.bipartite import Bipartite, Numbered, Numbers
from gridml.placement.repartition import NEW, Before

ROWS, COLUMNS, QUALITY = "u_part.npy", "v_part.npy", "quality.json"
ROW_NUMBERS, COLUMN_NUMBERS, MADE = "u_ids.npy", "v_ids.npy", "graph.npz"
FILES = frozenset({ROWS, COLUMNS, QUALITY, ROW_NUMBERS, COLUMN_NUMBERS, MADE})


@dataclass(frozen=True)
class Names:
    """The identities of rows and columns."""

    rows: Numbers | None = None  #: the numbers that name rows in the file, int64, ascending; None: positions name them
    columns: Numbers | None = None  #: the same for columns
    made: Bipartite | None = None  #: the graph, only if its rows were made from edges or cliques of a general graph


def check_free(folder: Path) -> None:
    """Raise UsageError if `folder` is a file, or holds anything other than an earlier placement."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder, or a new name. Name another --out.")
    try:
        held = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}. Name a folder.") from error
    if other := sorted(held - FILES):
        raise UsageError(
            f"{folder} holds {other[0]} already; expected an empty folder, or one that holds a placement "
            "(which is replaced). Name another --out."
        )


def save(folder: Path, placement: Placement, quality: str, names: Names | None = None) -> None:
    """Save a placement, its `quality` (JSON), and the `names` of rows and columns. An earlier placement is replaced.

    Raises UsageError if the folder holds something else, and StorageError if it cannot be written.
    """
    check_free(folder)
    # The files are written to a new folder, which then takes the place of the old one: readers see all files or none.
    there = folder.resolve()  # replace the target of a symbolic link, not the link
    name = f".{there.name}-{secrets.token_hex(4)}"
    new, old = there.with_name(f"{name}.new"), there.with_name(f"{name}.old")
    try:
        try:
            new.mkdir(parents=True)
            _write(new / ROWS, partial(_save, placement.rows.astype(np.int32, copy=False)))
            _write(new / COLUMNS, partial(_save, placement.columns.astype(np.int32, copy=False)))
            for name, numbers in ((ROW_NUMBERS, names.rows), (COLUMN_NUMBERS, names.columns)) if names else ():
                if numbers is not None:
                    _write(new / name, partial(_save, numbers))
            if names is not None and names.made is not None:
                _write(new / MADE, partial(_save_graph, names.made))
            _write(new / QUALITY, lambda file: file.write(quality.encode() + b"\n"))
            _move(new, there, old)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if there.exists():
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}. Make room, or name another --out.") from error


def _move(new: Path, there: Path, old: Path) -> None:
    """Replace the folder `there` by `new`. This takes two renames; if the second fails, the first is undone."""
    if not there.exists():
        new.rename(there)
        return
    there.rename(old)
    try:
        new.rename(there)
    except OSError:
        old.rename(there)
        raise


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    with path.open("xb") as file:
        fill(file)
        file.flush()
        # The data must be on disk before the rename, or a power cut could leave empty files under the final name.
        os.fsync(file.fileno())


def _save(array: NDArray[Any], file: IO[bytes]) -> None:
    np.save(file, array, allow_pickle=False)


def _save_graph(graph: Bipartite, file: IO[bytes]) -> None:
    """Save a graph in scipy's format, which `gridml place` reads."""
    ones = np.ones(graph.edges, np.int8)
    save_npz(file, csr_array((ones, graph.neighbours, graph.offsets), shape=(graph.rows, graph.columns)))


_AGAIN = "Place the graph without --from."


def before(root: Path, given: Numbered) -> Before:
    """Match the placement in a folder with the rows and columns of a graph.

    Rows and columns of a list of edges are matched by number. In other formats they are matched by position, and those
    after the last position of the earlier placement are new. Raises UsageError if the folder holds no placement, or a
    placement of another graph.
    """
    placement = _placement(root)
    rows, columns = (_numbers(root, name) for name in (ROW_NUMBERS, COLUMN_NUMBERS))
    if (root / MADE).exists():
        raise UsageError(
            f"{root} has rows that were made of a general graph's edges or cliques: they cannot be matched. {_AGAIN}"
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
        (ROW_NUMBERS, rows, placement.rows),
        (COLUMN_NUMBERS, columns, placement.columns),
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
    """Renumber the former parts so that the lost parts come last; a placement on `parts` parts then drops them. `lost`
    lists the numbers of the lost parts, separated by commas. Raises UsageError for other text, and if fewer
    than `parts` parts are left."""
    numbers = [word.strip() for word in lost.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in numbers):
        raise UsageError(f"the lost parts are {lost!r}; expected numbers, such as 3,7.")
    if parts > was.parts - len(numbers):
        raise UsageError(
            f"{was.parts:,} parts without {len(numbers):,} are {was.parts - len(numbers):,}; expected -k to be "
            f"at most that, got {parts}."
        )
    return was.with_last([int(word) for word in numbers])


def _placement(root: Path) -> Placement:
    path = root / QUALITY
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}. Name the --out folder of an earlier placement."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    rows, columns = _integers(root / ROWS), _integers(root / COLUMNS)
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= len(rows):
        raise _damaged(path, f"it says {parts!r} parts of {len(rows):,} rows")
    return Placement(parts, _parts(root / ROWS, rows, parts), _parts(root / COLUMNS, columns, parts), "")


def _parts(path: Path, values: NDArray[Any], parts: int) -> Parts:
    if len(values) and not (values.min() >= 0 and values.max() < parts):
        raise _damaged(path, f"it has parts from {values.min()} to {values.max()} where there are {parts:,}")
    return values.astype(np.int32)


def _numbers(root: Path, name: str) -> Numbers | None:
    if not (root / name).exists():
        return None
    numbers = _integers(root / name).astype(np.int64)
    if (numbers[1:] <= numbers[:-1]).any():
        raise _damaged(root / name, "its numbers do not ascend")
    return numbers


def _integers(path: Path) -> NDArray[Any]:
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
    """Return the part of each `wanted` number, −1 if it was not placed. `numbers` are the numbers that were placed,
    ascending, and `parts` the part of each."""
    if not len(numbers):
        return np.full(len(wanted), NEW, np.int32)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[at] == wanted, parts[at], NEW).astype(np.int32)
