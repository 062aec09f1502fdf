"""Columns that workers read themselves: a chunk says which file and which rows, and carries no values.

Whether a worker's file is the master's is seen from its size and a few rows all over it, once in a process: what a file
holds beyond those is what whoever copied it answers for. A file is looked for where the master has it, then by its name
in the worker's own folder, where a batch system puts what it transferred.
"""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError

Array = NDArray[Any]

SAMPLED = 64  # rows
MOST_OPEN = 64  # files of one process


class SharedFileError(OSError):
    """A file that a chunk refers to is not on this machine, or is another."""


@dataclass(frozen=True)
class SharedColumn:
    """Where a column lies: from byte `offset` of the file `path` of `size` bytes, `shape` (count, ...) of `dtype` in C
    order. `sample` is the SHA-256 of `SAMPLED` of its rows."""

    path: str
    size: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    sample: str

    def opened(self) -> Array:
        """Return the column, mapped read-only. Raises SharedFileError where this machine has not that file."""
        return _opened(self)

    def take(self, rows: Any) -> Array:
        """Return those rows, in memory. Raises SharedFileError as `opened` does."""
        return np.array(self.opened()[rows])


def shared_column(name: str, column: Array) -> SharedColumn:
    """Return where a memory-mapped column lies. Raises ProgramError where it lies in no file, or in
    pieces."""
    root: Any = column
    while isinstance(root.base, np.ndarray):
        root = root.base
    filename = getattr(root, "filename", None)
    if not isinstance(root.base, mmap.mmap) or filename is None:
        raise ProgramError(
            f"{name} is shared and got {type(column).__name__} in memory; expected a memory-mapped file that workers "
            f"reach, too: np.save it once, and give np.load(path, mmap_mode='r')."
        )
    if not column.flags.c_contiguous or not len(column):
        raise ProgramError(f"{name} is shared and lies in its file in pieces, or is empty; expected rows in one piece.")
    offset = root.offset + column.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    path = Path(filename).resolve()
    return SharedColumn(str(path), path.stat().st_size, int(offset), column.dtype.str, column.shape, _sample(column))


def _sample(column: Array) -> str:
    rows = np.linspace(0, len(column) - 1, SAMPLED).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(column[rows]).tobytes()).hexdigest()


@lru_cache(MOST_OPEN)
def _opened(column: SharedColumn) -> Array:
    path, places = Path(column.path), []
    for place in (path, Path.cwd() / path.name):
        try:
            size = place.stat().st_size
            if size != column.size:
                places.append(f"{place} has {size:,} bytes, expected {column.size:,}")
                continue
            mapped = np.memmap(place, np.dtype(column.dtype), "r", column.offset, column.shape)
        except (OSError, ValueError) as error:
            places.append(f"{place}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        if _sample(mapped) == column.sample:
            return mapped
        places.append(f"{place} holds other rows than the master's")
    raise SharedFileError(
        f"a shared field cannot be read on this machine ({'; '.join(places)}). Put the file where all workers reach "
        f"it, transfer it with the job, or declare the field without shared=True."
    )
