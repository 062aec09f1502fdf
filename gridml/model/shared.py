"""Columns that workers read themselves: a chunk says which file and which rows, and carries no values.

Whether a worker's file is the master's is seen from its size and a few rows all over it, when a process first opens it
and again when it was written to since: what a file holds beyond those is what whoever copied it answers for. A file is
looked for where the master has it, then by its name in the worker's own folder, where a batch system puts what it
transferred.

It is mapped, so rows of a file that was cut would end the process (SIGBUS); its size is looked at before they are read.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.protocol.payload import aligned_copy, aligned_rows

Array = NDArray[Any]

SAMPLED = 64  # rows
MAX_OPEN_FILES = 64  # files of one process


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
        """Return the column, mapped read-only. Raises SharedFileError where the file is not here (any more)."""
        if (mapped := _OPEN.get(self)) is not None and mapped.signature == _signature(mapped.descriptor):
            return mapped.values
        _OPEN.pop(self, None)
        while len(_OPEN) >= MAX_OPEN_FILES:
            del _OPEN[next(iter(_OPEN))]
        _OPEN[self] = mapped = _found(self)
        return mapped.values

    def take(self, rows: Any) -> Array:
        """Return those rows, in memory aligned as tensors are. Raises SharedFileError as `opened` does."""
        column = self.opened()
        return aligned_rows(column, rows) if isinstance(rows, np.ndarray) else aligned_copy(column[rows])


@dataclass(frozen=True)
class _Mapped:
    """A column as this process has mapped it, and what tells whether its file was written to since."""

    values: Array
    descriptor: int  # of the file, closed with the values
    signature: tuple[int, int]


_OPEN: dict[SharedColumn, _Mapped] = {}


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


def _signature(descriptor: int) -> tuple[int, int]:
    """The size of a file, and when it was written to."""
    facts = os.fstat(descriptor)
    return facts.st_size, facts.st_mtime_ns


def _found(column: SharedColumn) -> _Mapped:
    path, tried = Path(column.path), []
    for place in dict.fromkeys((path, Path.cwd() / path.name)):
        try:
            return _mapped(column, place)
        except (OSError, ValueError) as error:
            tried.append(f"{place}: {error.strerror or error if isinstance(error, OSError) else error}")
    raise SharedFileError(
        f"a shared field cannot be read on this machine ({'; '.join(tried)}). Put the file where all workers reach it, "
        f"and leave it as it is while a run reads it (write a new one beside it, under another name); or transfer it "
        f"with the job (gridml submit --send), or declare the field without shared=True."
    )


def _mapped(column: SharedColumn, place: Path) -> _Mapped:
    """Return a column in the file `place`. Raises OSError, and ValueError where it is another file."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        signature = _signature(descriptor)  # before it is looked at: what is written meanwhile shows later
        if signature[0] != column.size:
            raise ValueError(f"it has {signature[0]:,} bytes, expected {column.size:,}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            values = np.memmap(file, np.dtype(column.dtype), "r", column.offset, column.shape)
        if _sample(values) != column.sample:
            raise ValueError("it holds other rows than the master's")
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(values, os.close, descriptor)
    return _Mapped(values, descriptor, signature)
