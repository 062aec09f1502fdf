"""The folder that a placement is kept in: it is there with all of its files, or not at all.

Beside the parts of rows and columns it says what these are, where that cannot be seen from their places: the numbers
that they have in a list of edges, and the rows that were made of a general graph.
"""

from __future__ import annotations

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
from gridml.placement.base import Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.files.numbered import Numbers

ROWS, COLUMNS, QUALITY = "u_part.npy", "v_part.npy", "quality.json"
ROW_NUMBERS, COLUMN_NUMBERS, MADE = "u_ids.npy", "v_ids.npy", "graph.npz"
FILES = frozenset({ROWS, COLUMNS, QUALITY, ROW_NUMBERS, COLUMN_NUMBERS, MADE})


@dataclass(frozen=True)
class Names:
    """The numbers that rows and columns have where they come from, int64, ascending, and the graph whose rows were
    `made`. None: nothing to be said."""

    rows: Numbers | None = None
    columns: Numbers | None = None
    made: Bipartite | None = None


def check_free(folder: Path) -> None:
    """Raise UsageError where `folder` is a file, or holds anything but an earlier placement."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder, or a new name. Name another --out.")
    try:
        held = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}. Name a folder.") from error
    if other := sorted(held - FILES):
        raise UsageError(
            f"{folder} holds {other[0]} already; expected an empty folder, one with a placement, which is replaced, or "
            "none. Name another --out."
        )


def save(folder: Path, placement: Placement, quality: str, names: Names | None = None) -> None:
    """Write the parts of rows and columns, int32, the `quality` beside them, and what is known of their `names`; a
    placement that is there is replaced.

    Raises UsageError where the folder holds something else, and StorageError where it cannot be written.
    """
    check_free(folder)
    there = folder.resolve()  # a link stays one
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
    """A folder is replaced only by two renames; if the second fails the first is undone."""
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
        os.fsync(file.fileno())


def _save(array: NDArray[Any], file: IO[bytes]) -> None:
    np.save(file, array, allow_pickle=False)


def _save_graph(graph: Bipartite, file: IO[bytes]) -> None:
    """As scipy does, and `gridml place` reads."""
    ones = np.ones(graph.edges, np.int8)
    save_npz(file, csr_array((ones, graph.neighbours, graph.offsets), shape=(graph.rows, graph.columns)))
