"""Shared columns: memory-mapped files that workers read themselves. A chunk names the file and rows, not the values.

A process of a worker verifies the file's size and a sample of its rows, when the process first opens the file and after
each change of it. Other rows are not compared. The process looks for the file under the master's path, then by its name
in its current folder, where a batch system puts transferred files.

Reading a mapped row beyond the end of a truncated file would kill the process (SIGBUS), so the size is checked before
each read.
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

SAMPLED = 64  # number of rows that the checksum covers
MAX_OPEN_FILES = 64  # in one process; to open another file, the file that was opened first is closed


class SharedFileError(OSError):
    """A file that a chunk refers to is missing on this machine, or has other contents."""


@dataclass(frozen=True)
class SharedColumn:
    """The location of a column in a file, and the properties that identify the file. Serialised by field name."""

    path: str  #: path of the file on the master
    size: int  #: bytes of the file
    offset: int  #: byte at which the column begins
    dtype: str
    shape: tuple[int, ...]  #: (count, ...), in C order
    sample: str  #: SHA-256 of `SAMPLED` rows

    def opened(self) -> Array:
        """Return the column, mapped read-only. Raises SharedFileError if the file is missing or has changed."""
        if (mapped := _OPEN.get(self)) is not None and mapped.signature == _signature(mapped.descriptor):
            return mapped.values
        _OPEN.pop(self, None)
        while len(_OPEN) >= MAX_OPEN_FILES:
            del _OPEN[next(iter(_OPEN))]
        _OPEN[self] = mapped = _found(self)
        return mapped.values

    def take(self, rows: Any) -> Array:
        """Return copies of these rows, aligned as tensors are. Raises SharedFileError as `opened` does."""
        column = self.opened()
        return aligned_rows(column, rows) if isinstance(rows, np.ndarray) else aligned_copy(column[rows])


@dataclass(frozen=True)
class _Mapped:
    """A mapped column of this process, and the signature by which a change of the file is detected."""

    values: Array
    descriptor: int  # file descriptor; a finaliser of `values` closes it
    signature: tuple[int, int]


_OPEN: dict[SharedColumn, _Mapped] = {}  # the open files of this process, oldest first; mutated only by `opened`


def shared_column(name: str, column: Array) -> SharedColumn:
    """Return the location of a memory-mapped column. Raises ProgramError if it is not one contiguous part of a file."""
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
        raise ProgramError(f"{name} is shared, and is empty or in pieces in its file; expected rows in one piece.")
    offset = root.offset + column.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    path = Path(filename).resolve()
    return SharedColumn(str(path), path.stat().st_size, int(offset), column.dtype.str, column.shape, _sample(column))


def _sample(column: Array) -> str:
    rows = np.linspace(0, len(column) - 1, SAMPLED).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(column[rows]).tobytes()).hexdigest()


def _signature(descriptor: int) -> tuple[int, int]:
    """Return the size and modification time of a file."""
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
        f"and leave it as it is while a run reads it (write a new one next to it, under another name); or transfer it "
        f"with the job (gridml submit --send), or declare the field without shared=True."
    )


def _mapped(column: SharedColumn, place: Path) -> _Mapped:
    """Map a column of the file `place`. Raises OSError, and ValueError if the file has other contents."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        signature = _signature(descriptor)  # read first, so that the next `opened` detects a write during `_sample`
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
